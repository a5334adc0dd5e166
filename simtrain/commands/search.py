"""`simtrain search`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from simtrain.errors import InputError, Location
from simtrain.studies.objectives.registry import DEFAULT, OBJECTIVES, ObjectiveName

if TYPE_CHECKING:
    from simtrain.studies.search import SearchResult


GpusOption = Annotated[
    list[str], typer.Option("--gpus", help="Number of GPUs, or several to compare: 256,512.")
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Context-parallel sizes to try: 1,2,4. Default: 1; with sequences of 32,768 tokens or "
        "more, or if the scenario has several, all sizes with at least 4,096 tokens per rank.",
    ),
]
ExpertOption = Annotated[
    str | None,
    typer.Option(
        "--expert",
        help="Expert-parallel sizes to try: 1,8. Default: all divisors of the number of experts.",
    ),
]
ObjectiveOption = Annotated[
    ObjectiveName,
    typer.Option(
        help="Rank by: "
        + "; ".join(f"{name} ({objective.text})" for name, objective in OBJECTIVES.items())
        + "."
    ),
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory", help="Memory limit per GPU, such as 40GiB. Default: the GPU's capacity."
    ),
]
MarginOption = Annotated[
    str | None,
    typer.Option(
        "--margin",
        help="Memory per GPU that stays free, such as 4GiB. Layouts that leave it free are ranked "
        "together. Default: number 1 must surely fit (the 90 % interval of its peak does).",
    ),
]
AllowRiskOption = Annotated[
    float | None,
    typer.Option(
        "--allow-risk",
        help="Probability that a ranked layout may not fit, such as 0.3; 1 ranks all that fit by "
        "prediction. Default: ranked layouts surely fit.",
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option(
        "--trials",
        min=1,
        help="If more layouts than this are legal, evaluate this many, proposed by an optimizer.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes that compute memory and bounds. Their number does not change the result. "
        "Default: one per core, at most 8, if more than 10,000 layouts are legal.",
    ),
]


VaryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="FIELD[=VALUES]",
        help="Search these values of a field: batch.micro=1,2 or overlap.userbuffers (all values "
        "of a flag or a choice). May be repeated.",
    ),
]
HoldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hold",
        metavar="FIELD",
        help="Keep the scenario's value of a field or a section: overlap. May be repeated.",
    ),
]


@reads_other_tools
def search(
    scenario: ScenarioArgument,
    gpus: GpusOption,
    context: ContextOption = None,
    expert: ExpertOption = None,
    objective: ObjectiveOption = DEFAULT,
    max_memory: MaxMemoryOption = None,
    margin: MarginOption = None,
    allow_risk: AllowRiskOption = None,
    overrides: SetOption = None,
    scale: ScaleOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Length of the ranking.")] = 10,
    out: ScenarioFolderOption = None,
    trials: TrialsOption = None,
    seconds: SecondsOption = None,
    workers: WorkersOption = None,
    vary: VaryOption = None,
    hold: HoldOption = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Also print why number 1 is better, and what was searched."),
    ] = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
) -> None:
    """Find the fastest (or cheapest) layout for a model and global batch on N GPUs.

    The search covers every legal combination of tensor, pipeline and data parallelism, interleave,
    schedule, microbatch, recompute, sequence parallelism and ZeRO stage. For models with experts it
    adds expert parallelism, with expert_tensor of 1 or equal to tensor; for long sequences, context
    parallelism. Then options of overlap, memory and recompute of the two best layouts are changed
    one at a time. A field set by --set or named by --hold keeps its value; --vary searches others.

    Ranked are layouts that surely fit. Faster ones that may not fit follow below, marked with *;
    --allow-risk and --margin rank them too.

    Exits with 0 and a ranking, also if --seconds or Ctrl-C ended the search: the last line says how
    close to the optimum the best layout is. Exits with 3 if nothing fits, with 2 if nothing is
    legal.

    With experts: simtrain search mixtral_8x7b --gpus 64 --expert 2,4,8 --context 1

    Example: simtrain search table5_22b_present --gpus 8 --objective time --top 5 --seconds 30
    """
    from simtrain.commands.interrupts import first_interrupt
    from simtrain.commands.loading import load_unchecked
    from simtrain.commands.progress import progress_bar
    from simtrain.render.html.document import write_document
    from simtrain.render.html.study_page import study_document
    from simtrain.studies.search import search as search_layouts
    from simtrain.studies.search import write_scenarios
    from simtrain.studies.search.files import names_of_ranks, prepare_folder
    from simtrain.studies.search.variation import read_vary
    from simtrain.views.search import search_view

    output = Output(as_json, as_csv, as_markdown, table)
    loaded = load_unchecked(scenario, all_overrides(overrides, scale))
    if page := page_of(out):
        out = None
    if out:
        prepare_folder(loaded, out, names_of_ranks(loaded, top))
    with progress_bar() as on_progress, first_interrupt() as interrupted:
        result = search_layouts(
            loaded,
            _counts("--gpus", gpus, "256,512"),
            objective,
            context=None if context is None else _counts("--context", [context], "1,2,4"),
            expert=None if expert is None else _counts("--expert", [expert], "1,8"),
            max_memory=max_memory,
            margin=margin,
            allow_risk=allow_risk,
            top=top,
            max_trials=trials,
            workers=workers,
            seconds=seconds,
            interrupted=interrupted,
            on_progress=on_progress,
            vary=read_vary(vary or ()),
            hold=hold or (),
            refines=True,
        )
    files = write_scenarios(result, out) if out else []
    view = partial(search_view, result, details)
    show(output, _as_json(result, files), view, result.base.cluster)
    if page:
        write_document(study_document(search_view(result, details=True)), page)


def _counts(option: str, written: list[str], example: str) -> tuple[int, ...]:
    """Parse an option with one number, or with several separated by commas."""
    numbers = [number.strip() for text in written for number in text.split(",")]
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        what = "GPUs" if option == "--gpus" else "ranks"
        message = f'"{", ".join(written)}" is not a number of {what}'
        fix = f"write positive integers: {option} {example}"
        raise InputError.of("E834", message, Location(option), fix)
    return tuple(map(int, numbers))


def _as_json(result: SearchResult, files: list[Path]) -> dict[str, Any]:
    data = result.to_dict()
    with_files(data["ranked"], files)
    return data | {"best": data["ranked"][0]}
