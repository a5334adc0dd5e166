"""`simtrain search`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.commands.declare import Fields, Written, options_first
from simtrain.commands.options import ScenarioFolderOption, SecondsOption
from simtrain.commands.output import Output, page_of, show, with_files
from simtrain.commands.question import IMPORT_NAMES, Question, import_fields
from simtrain.errors import InputError, Location
from simtrain.studies.objectives import OBJECTIVES, ObjectiveName
from simtrain.studies.search.request import SearchRequest

if TYPE_CHECKING:
    from simtrain.studies.search.result import SearchResult

OBJECTIVE_HELP = "; ".join(f"{name} ({each.text})" for name, each in OBJECTIVES.items())


def _counts(written: str | list[str], option: str) -> tuple[int, ...]:
    """Parse an option with one number, or with several separated by commas."""
    texts = [written] if isinstance(written, str) else written
    numbers = [number.strip() for text in texts for number in text.split(",")]
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        message = f'"{", ".join(texts)}" is not a number of GPUs'
        fix = f"write positive integers: {option} 256,512"
        raise InputError.of("E834", message, Location(option), fix)
    return tuple(map(int, numbers))


SearchFields = Annotated[
    dict[str, Any],
    Fields(
        SearchRequest,
        "gpus objective max_memory allow_risk top seconds",
        {
            "gpus": Annotated[tuple[int, ...], Written(_counts, list[str])],
            "objective": Annotated[ObjectiveName, typer.Option(help=f"Rank by: {OBJECTIVE_HELP}.")],
            "top": Annotated[int, typer.Option(min=1)],
            "seconds": SecondsOption,
        },
    ),
]
# --gpus is the number of GPUs to search.
SearchQuestion = Annotated[
    Question,
    Fields(
        Question,
        "scenario overrides scale imports",
        {"imports": Annotated[dict[str, Any], import_fields(IMPORT_NAMES)]},
    ),
]


# More than 60 lines: half are its help, and the rest passes each option on once.
@options_first(
    "scenario gpus objective max_memory allow_risk overrides scale top out seconds vary hold "
    "details"
)
def search(
    question: SearchQuestion,
    fields: SearchFields,
    output: Output,
    out: ScenarioFolderOption = None,
    *,
    vary: Annotated[list[str] | None, typer.Option(metavar="FIELD[=VALUES]")] = None,
    hold: Annotated[list[str] | None, typer.Option(metavar="FIELD")] = None,
    details: bool = False,
) -> None:
    """Find the fastest (or cheapest) layout for a model and global batch on N GPUs.

    Args:
        vary: search these values of a field: batch.micro=1,2 or overlap.userbuffers (all values of
            a flag or a choice). May be repeated.
        hold: keep the scenario's value of a field or a section: overlap. May be repeated.
        details: also print what was searched.

    The search covers every legal combination of tensor, pipeline and data parallelism, interleave,
    schedule, microbatch, recompute, sequence parallelism and ZeRO stage. For models with experts it
    adds expert parallelism, with expert_tensor of 1 or equal to tensor; for long sequences, context
    parallelism. Then options of overlap, memory and recompute of the two best layouts are changed
    one at a time. A field set by --set or named by --hold keeps its value; --vary searches others.

    Ranked are layouts that surely fit. Faster ones that may not fit follow below, marked with *;
    --allow-risk ranks them too.

    Exits with 0 and a ranking, also if --seconds or Ctrl-C ended the search: the last line says how
    close to the optimum the best layout is. Exits with 3 if nothing fits, with 2 if nothing is
    legal.

    With experts: simtrain search mixtral_8x7b --gpus 64 --vary parallelism.expert=2,4,8

    Example: simtrain search table5_22b_present --gpus 8 --objective time --top 5 --seconds 30
    """
    from simtrain.commands.interrupts import first_interrupt
    from simtrain.commands.progress import progress_bar
    from simtrain.render.html.document import write_document
    from simtrain.render.html.pages import study_document
    from simtrain.studies.found_files import names_of_ranks, prepare_folder, write_scenarios
    from simtrain.studies.search.request import read_vary
    from simtrain.studies.search.run import search as search_layouts
    from simtrain.views.search import search_view

    base = question.load_unchecked()
    if page := page_of(out):
        out = None
    if out:
        prepare_folder(out, names_of_ranks(base, fields["top"]))
    with progress_bar() as on_progress, first_interrupt() as interrupted:
        result = search_layouts(
            base,
            **fields,
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


def _as_json(result: SearchResult, files: list[Path]) -> dict[str, Any]:
    data = result.to_dict()
    with_files(data["ranked"], files)
    return data | {"best": data["ranked"][0]}
