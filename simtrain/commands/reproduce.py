"""`simtrain reproduce`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from simtrain.commands.shared import MISSED, JsonOption, OutOption, show


class Target(StrEnum):
    """Results of the paper, in its order."""

    TABLE2 = "table2"
    TABLE4 = "table4"
    TABLE5 = "table5"
    DP530B = "dp530b"
    FIG1 = "fig1"
    FIG7 = "fig7"
    FIG8 = "fig8"
    FIG9 = "fig9"
    APPENDIX_C = "appendix-c"
    ZERO = "zero"
    ALL = "all"


def reproduce(
    target: Annotated[Target, typer.Argument(help="Table, figure or study of the paper.")],
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Compute a table or figure of the paper and compare it with the published numbers.

    Exits with 4 if an error is above its threshold.

    Example: simtrain reproduce fig7 --out pictures
    """
    from simtrain import paper
    from simtrain.commands.progress import progress_bar
    from simtrain.figures.paper import write_paper_figure
    from simtrain.output_folder import make_picture_folder
    from simtrain.pages.paper_page import paper_page

    if out:
        make_picture_folder(out)
    results: dict[str, paper.TargetResult] = {}
    with progress_bar() as report:
        for name in Target if target is Target.ALL else [target]:
            if name is not Target.ALL:
                results[name] = paper.reproduce(name, report)
                if out:
                    write_paper_figure(name, results[name], out)
    result = paper.AllTargets(results) if target is Target.ALL else results[target]
    show(as_json, result.to_json, lambda: paper_page(result))
    if not result.ok:
        raise typer.Exit(MISSED)
