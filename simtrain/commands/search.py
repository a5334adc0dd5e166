"""`simtrain search`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simtrain.commands.shared import JsonOption, ScenarioArgument, SetOption, show
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.search import SearchResult


def search(
    scenario: ScenarioArgument,
    gpus: Annotated[
        list[str],
        typer.Option("--gpus", help="Number of GPUs, or several to compare: 256,512."),
    ],
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="Context-parallel ranks to try: 1,2,4. Default: 1, or with 32,768 tokens and more "
            "(or several ranks in the scenario) all that leave a rank 4,096 tokens.",
        ),
    ] = None,
    expert: Annotated[
        str | None,
        typer.Option(
            "--expert",
            help="Expert-parallel ranks to try: 1,8. Default: all that divide the experts.",
        ),
    ] = None,
    objective: Annotated[
        Literal["time", "cost", "memory", "tokens_per_s"],
        typer.Option(
            help="Objective to minimise (tokens_per_s is maximised). Cost is GPU-seconds per "
            "iteration: for one number of GPUs it ranks as time does."
        ),
    ] = "time",
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            help="Limit of memory per GPU, such as 40GiB. Default: all that a GPU has.",
        ),
    ] = None,
    overrides: SetOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Length of the ranking.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write a scenario file for each layout of the ranking into this folder."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            help="If more layouts than this are legal, let an optimizer propose this many.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            help="End after this time with the best so far, and say how far it can be from the "
            "optimum. Ctrl-C does the same; the second one ends at once.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes that compute memory and bounds; their number changes no result. "
            "Each takes a second to start: worth it for thousands of legal layouts.",
        ),
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest (or cheapest) layout for a model and global batch on N GPUs.

    It searches every legal combination of tensor, pipeline and data parallelism, interleave,
    microbatch, recompute, sequence parallelism and ZeRO stage; for models with experts also expert
    parallelism, with expert_tensor 1 or as many as tensor; for long sequences context parallelism.
    A field given by --set keeps its value.

    Exits with 0 and a ranking, also if --seconds or Ctrl-C ended the search: the last line says how
    good the best is proved to be. Exits with 3 if nothing fits, with 2 if nothing is legal.

    With experts: simtrain search mixtral_8x7b --gpus 64 --expert 2,4,8 --context 1

    Example: simtrain search table5_22b_present --gpus 8 --objective time --top 5 --seconds 30
    """
    from simtrain.commands.interrupts import first_interrupt
    from simtrain.commands.progress import progress_bar
    from simtrain.output_folder import make_folder
    from simtrain.pages.search_page import search_page
    from simtrain.scenario import load_unchecked
    from simtrain.search import Objective, write_scenarios
    from simtrain.search import search as find

    loaded = load_unchecked(scenario, overrides or ())
    if out:
        make_folder(out, "scenarios")
    with progress_bar() as on_progress, first_interrupt() as interrupted:
        result = find(
            loaded,
            _counts("--gpus", gpus, "256,512"),
            Objective(objective),
            context=None if context is None else _counts("--context", [context], "1,2,4"),
            expert=None if expert is None else _counts("--expert", [expert], "1,8"),
            max_memory=max_memory,
            top=top,
            max_trials=trials,
            workers=workers,
            seconds=seconds,
            interrupted=interrupted,
            on_progress=on_progress,
        )
    files = write_scenarios(result, out) if out else []
    page = partial(search_page, result)
    show(as_json, lambda: _as_json(result, files), page, result.base.cluster)


def _counts(option: str, written: list[str], example: str) -> tuple[int, ...]:
    """Parse an option with one number, or with several separated by commas."""
    parts = [part.strip() for text in written for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        what = "GPUs" if option == "--gpus" else "ranks"
        message = f'"{", ".join(written)}" is not a number of {what}'
        fix = f"write whole numbers of at least 1: {option} {example}"
        raise InputError.of("E834", message, Location(option), fix)
    return tuple(int(part) for part in parts)


def _as_json(result: SearchResult, files: list[Path]) -> dict[str, Any]:
    data = result.to_json()
    for ranked, path in zip(data["ranked"], files, strict=False):
        ranked["file"] = str(path)
    return data
