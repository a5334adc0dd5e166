"""`simtrain plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simtrain.commands.app import MISSED
from simtrain.commands.completion import shipped_profiles
from simtrain.commands.cost import TermsFields
from simtrain.commands.declare import Fields, Written, options_first
from simtrain.commands.options import SecondsOption
from simtrain.commands.output import Output, show
from simtrain.commands.search import SearchQuestion
from simtrain.studies.training_requests import PlanRequest


def _numbers(text: str, _: str) -> tuple[int, ...]:
    """Parse --gpus."""
    from simtrain.studies.planning import read_gpus

    return read_gpus(text)


def _names(text: str, _: str) -> list[str]:
    """Parse --cluster."""
    return [name.strip() for name in text.split(",")]


ClustersOption = Annotated[
    list[str] | None,
    typer.Option("--cluster", autocompletion=shipped_profiles),
    Written(_names),
]
PlanFields = Annotated[
    dict[str, Any],
    Fields(
        PlanRequest,
        "gpus days budget objective seconds",
        {
            "gpus": Annotated[
                tuple[int, ...],
                typer.Option(help="Numbers of GPUs: 128,256,512, or powers of two: 128..4096."),
                Written(_numbers),
            ],
            "seconds": SecondsOption,
        },
    ),
]


# More than 60 lines: half are its help, and the rest passes each option on once.
@options_first(
    "scenario tokens gpus clusters days budget goodput price pue co2 "
    "objective overrides scale out seconds details"
)
def plan(
    question: SearchQuestion,
    terms: TermsFields,
    fields: PlanFields,
    output: Output,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    clusters: ClustersOption = None,
    *,
    details: bool = False,
) -> None:
    """Find clusters and numbers of GPUs that train a model within a time and a budget.

    Args:
        clusters: hardware profiles: a100_sxm4_80gb,h100_sxm. Default: the scenario's cluster.
        out: page with the answer and its details: plan.html.
        details: also print what predictions and prices rest on.

    For each cluster and number of GPUs, it searches the fastest layout like simtrain search, and
    computes days, price and energy like simtrain cost. With a fixed number of GPUs the fastest
    layout is also the cheapest. The table marks the fastest and the cheapest row that meet the
    limits.

    If --gpus needs more nodes than a cluster has, nodes are added, and a note says so.

    Exits with 0, also if --seconds or Ctrl-C ended the searches; with 4 if no row meets the limits,
    with 3 if nothing fits, with 2 if nothing is legal.

    Example: simtrain plan gpt3_175b --tokens 300B --days 60 --gpus 256..1024
    """
    from simtrain.base.output_folder import check_writable
    from simtrain.commands.interrupts import first_interrupt
    from simtrain.commands.progress import progress_bar
    from simtrain.render.html.document import check_html_file, write_document
    from simtrain.render.html.pages import study_document
    from simtrain.studies.planning import plan as plan_training
    from simtrain.views.plan import plan_view

    base = question.load_unchecked()
    names = clusters or [base.cluster]
    if out is not None:
        check_html_file(out)
        check_writable(out, "the page")
    with progress_bar() as on_progress, first_interrupt() as interrupted:
        result = plan_training(
            base,
            clusters=names,
            **terms,
            **fields,
            interrupted=interrupted,
            on_progress=on_progress,
        )
    show(output, result, lambda: plan_view(result, details), names)
    if out is not None:
        write_document(study_document(plan_view(result, details=True)), out)
    if result.fastest is None:
        raise typer.Exit(MISSED)
