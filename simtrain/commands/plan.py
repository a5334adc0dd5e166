"""`simtrain plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.commands.app import MISSED
from simtrain.commands.completion import shipped_profiles
from simtrain.commands.cost_options import (
    Co2Option,
    ContractOption,
    ElectricityOption,
    GoodputOption,
    PriceOption,
    PueOption,
    TokensOption,
    read_terms,
)
from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.options import (
    JsonOption,
    ScaleOption,
    ScenarioArgument,
    ScenarioFolderOption,
    SecondsOption,
    SetOption,
)
from simtrain.commands.output import (
    CsvOption,
    MarkdownOption,
    Output,
    TableOption,
    page_of,
    show,
    with_files,
)
from simtrain.commands.question import all_overrides
from simtrain.studies.objectives.registry import DEFAULT, OF_TRAININGS, TrainingObjectiveName

if TYPE_CHECKING:
    from simtrain.studies.planning import TrainingPlan

_WORTH_WORKERS = 6
"""Number of combinations from which worker processes pay off; they take a second to start."""


GpusOption = Annotated[
    str,
    typer.Option("--gpus", help="Numbers of GPUs: 128,256,512, or powers of two: 128..4096."),
]
ClustersOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Hardware profiles: a100_sxm4_80gb,h100_sxm. Default: the scenario's cluster.",
        autocompletion=shipped_profiles,
    ),
]
DaysOption = Annotated[float | None, typer.Option("--days", help="Maximum training time, in days.")]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", help="Maximum price: 2M, 500K, 2M USD.")
]
ObjectiveOption = Annotated[
    TrainingObjectiveName,
    typer.Option(
        help="Sort by "
        + " or by ".join(objective.training_text for objective in OF_TRAININGS.values())
        + "."
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes, each searching one combination at a time. Their number does not change "
        "the result. Default: one per processor with 6 combinations or more, else 1.",
    ),
]


@reads_other_tools
def plan(
    scenario: ScenarioArgument,
    tokens: TokensOption,
    gpus: GpusOption,
    clusters: ClustersOption = None,
    days: DaysOption = None,
    budget: BudgetOption = None,
    goodput: GoodputOption = 1.0,
    price: PriceOption = None,
    contract: ContractOption = None,
    pue: PueOption = 1.0,
    electricity: ElectricityOption = None,
    co2: Co2Option = None,
    objective: ObjectiveOption = DEFAULT,
    overrides: SetOption = None,
    scale: ScaleOption = None,
    out: ScenarioFolderOption = None,
    seconds: SecondsOption = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also print what predictions and prices rest on.")
    ] = False,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
) -> None:
    """Find clusters and numbers of GPUs that train a model within a time and a budget.

    For each cluster and number of GPUs, it searches the fastest layout like simtrain search, and
    computes days, price and energy like simtrain cost. With a fixed number of GPUs the fastest
    layout is also the cheapest. The table marks the fastest and the cheapest row that meet the
    limits.

    If --gpus needs more nodes than a cluster has, nodes are added, and a note says so.

    Exits with 0, also if --seconds or Ctrl-C ended the searches; with 4 if no row meets the limits,
    with 3 if nothing fits, with 2 if nothing is legal.

    Example: simtrain plan gpt3_175b --tokens 300B --days 60 --gpus 256..1024
    """
    from simtrain.commands.interrupts import first_interrupt
    from simtrain.commands.loading import load_unchecked
    from simtrain.commands.progress import progress_bar
    from simtrain.render.html.document import write_document
    from simtrain.render.html.study_page import study_document
    from simtrain.studies.cost import Limits
    from simtrain.studies.planning import plan as plan_training
    from simtrain.studies.planning import read_gpus, write_plan
    from simtrain.studies.planning.files import names_of_rows
    from simtrain.studies.search.files import prepare_folder
    from simtrain.views.plan import plan_view

    output = Output(as_json, as_csv, as_markdown, table)
    # A wrong option is an error before a scenario is loaded, which may take seconds.
    read_terms(tokens, goodput, price, contract, pue, electricity, co2)
    numbers = read_gpus(gpus)
    Limits.read(days, budget)
    base = load_unchecked(scenario, all_overrides(overrides, scale))
    names = [base.cluster] if clusters is None else [name.strip() for name in clusters.split(",")]
    if page := page_of(out):
        out = None
    if out:
        rows = [(name, number) for name in names for number in numbers]
        prepare_folder(base, out, names_of_rows(base, rows))
    with progress_bar() as on_progress, first_interrupt() as interrupted:
        result = plan_training(
            base,
            tokens,
            names,
            numbers,
            days=days,
            budget=budget,
            goodput=goodput,
            price=price,
            contract=contract or "on_demand",
            pue=pue,
            electricity=electricity,
            co2=co2,
            objective=objective,
            workers=workers or _workers(len(names) * len(numbers)),
            seconds=seconds,
            interrupted=interrupted,
            on_progress=on_progress,
        )
    files = write_plan(result, base, out) if out else []
    show(output, _as_json(result, files), lambda: plan_view(result, out, details), names)
    if page:
        write_document(study_document(plan_view(result, out, details=True)), page)
    if result.fastest is None:
        raise typer.Exit(MISSED)


def _workers(num_combinations: int) -> int:
    """Return the default number of processes."""
    from simtrain.base.operating_system import num_processors

    return min(num_processors(), num_combinations) if num_combinations >= _WORTH_WORKERS else 1


def _as_json(plan: TrainingPlan, files: list[Path]) -> dict[str, Any]:
    """Return the plan as JSON data, with the scenario file of each layout if files were written."""
    data = plan.to_dict()
    with_files((row for row in data["rows"] if row["layout"]), files)
    return data
