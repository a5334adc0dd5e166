"""The command of the paper: `simtrain reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from simtrain.commands.declare import Argument
from simtrain.commands.group import MISSED
from simtrain.commands.options import OutOption, refuse
from simtrain.commands.output import Output, show
from simtrain.commands.printing import emit

_Figure = Literal["fig1", "fig7", "fig8", "fig9"]
# The results of the paper, in its order.
Target = Literal["table2", "table4", "table5", "dp530b", _Figure, "appendix-c", "all", "explore"]


def reproduce(
    target: Annotated[Target, Argument()],
    output: Output,
    out: OutOption = None,
) -> None:
    """Compute a table or figure of the paper and compare it with the published numbers.

    Args:
        target: table, figure or study of the paper; explore for its figures with sliders.
        out: folder for pictures (PNG and SVG); for explore, the HTML file.

    Exits with 4 if an error is above its threshold.

    explore writes one HTML file that needs no network. It shows the activations of a layer tensor
    by tensor, when attention dominates, and the memory and time of each recompute strategy. Bytes
    follow the sliders. Times are simulated when the page is written.

    Example: simtrain reproduce fig7 -o pictures
    """
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.commands.printing import progress_bar
    from simtrain.guests.paper import targets
    from simtrain.guests.paper.figures import is_drawn, write_paper_figure
    from simtrain.guests.paper.models import PRESENT, paper_scenario
    from simtrain.guests.paper.view import paper_view

    if target == "explore":
        refuse(output.written, "has no effect on the page with sliders")
        _write_page(out or Path("explore.html"))
        return
    if out:
        if target != "all" and not is_drawn(target):
            refuse({"--output": out}, f"has no effect on {target}, of which there is no picture")
        make_picture_folder(out)
    results: dict[str, targets.TargetResult] = {}
    with progress_bar() as report:
        for name in get_args(Target)[:-2] if target == "all" else [target]:
            results[name] = targets.reproduce(name, report)
            if out and is_drawn(name):
                write_paper_figure(name, results[name], out)
    result = targets.AllTargets(results) if target == "all" else results[target]
    cluster = paper_scenario("22B", PRESENT).cluster  # that of all scenarios of the paper
    show(output, result, lambda: paper_view(result), cluster)
    if not result.ok:
        raise SystemExit(MISSED)


def _write_page(file: Path) -> None:
    from simtrain.base.output_folder import check_writable
    from simtrain.commands.printing import progress_bar
    from simtrain.guests.paper import explore
    from simtrain.render.html.document import check_html_file, write_document

    check_html_file(file)
    check_writable(file, "the page")
    with progress_bar() as report:
        document = explore.explore_document(on_progress=report)
    write_document(document, file)
    emit(f"{file}\n")
