"""`simtrain reproduce`."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import typer

from simtrain.commands.app import MISSED, in_panel
from simtrain.commands.options import OutOption
from simtrain.commands.output import Output, show

_Figure = Literal["fig1", "fig7", "fig8", "fig9"]
# The results of the paper, in its order.
Target = Literal["table2", "table4", "table5", "dp530b", _Figure, "appendix-c", "zero", "all"]


@in_panel("Look up")
def reproduce(
    target: Annotated[Target, typer.Argument()], output: Output, out: OutOption = None
) -> None:
    """Compute a table or figure of the paper and compare it with the published numbers.

    Args:
        target: table, figure or study of the paper.

    Exits with 4 if an error is above its threshold.

    Example: simtrain reproduce fig7 --out pictures
    """
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.commands.progress import progress_bar
    from simtrain.paper import targets
    from simtrain.paper.figures import write_paper_figure
    from simtrain.paper.models import PRESENT, paper_scenario
    from simtrain.paper.view import paper_view

    if out:
        make_picture_folder(out)
    results: dict[str, targets.TargetResult] = {}
    with progress_bar() as report:
        for name in get_args(Target)[:-1] if target == "all" else [target]:
            results[name] = targets.reproduce(name, report)
            if out:
                write_paper_figure(name, results[name], out)
    result = targets.AllTargets(results) if target == "all" else results[target]
    cluster = paper_scenario("22B", PRESENT).cluster  # that of all scenarios of the paper
    show(output, result, lambda: paper_view(result), cluster)
    if not result.ok:
        raise typer.Exit(MISSED)
