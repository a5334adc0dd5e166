"""`simtrain plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from simtrain.commands.cost import GoodputOption, TokensOption
from simtrain.commands.shared import JsonOption, ScenarioArgument, SetOption, show

LIMITS_MISSED = 4
"""Exit code if no combination meets the limits."""
_WORTH_WORKERS = 6
"""Combinations from which on the second that workers need to start is worth it."""


def plan(
    scenario: ScenarioArgument,
    tokens: TokensOption,
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus", help="Numbers of GPUs: 128,256,512, or powers of two from 128..4096."
        ),
    ],
    clusters: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Hardware profiles: a100_sxm4_80gb,h100_sxm. Default: the scenario's.",
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", help="Longest training time, in days.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Highest price: 2M, 500K, 2M USD.")
    ] = None,
    goodput: GoodputOption = 1.0,
    price: Annotated[
        str | None,
        typer.Option("--price", help='Price of a GPU on all clusters: "2.5 USD/h".'),
    ] = None,
    objective: Annotated[
        Literal["time", "cost"], typer.Option(help="Sort by training time, or by price.")
    ] = "time",
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write a scenario file for each layout into this folder."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            help="End after this time with the best so far. Ctrl-C does the same; the second one "
            "ends at once.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that search, each one combination at a time; their number changes no "
            "result. By default one per processor for 6 combinations and more, else 1.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find clusters and numbers of GPUs that train a model within days and a budget.

    For each cluster and number of GPUs it searches the fastest layout, as simtrain search does, and
    computes days, price and energy, as simtrain cost does. On a given number of GPUs the fastest
    layout is also the cheapest. The answer marks the fastest and the cheapest row that meet the
    limits.

    A cluster with fewer GPUs than --gpus gets more nodes, and the answer says so.

    Exits with 0, also if --seconds or Ctrl-C ended the searches; with 4 if no row meets the limits;
    with 3 if nothing fits, with 2 if nothing is legal.

    Example: simtrain plan gpt3_175b --tokens 300B --days 60 --gpus 256..1024
    """
    from simtrain.commands.interrupts import first_interrupt
    from simtrain.commands.progress import progress_bar
    from simtrain.cost import Limits, read_budget, read_price, read_tokens
    from simtrain.output_folder import make_folder
    from simtrain.pages.plan_page import plan_page
    from simtrain.planning import plan_training, read_gpus, write_plan
    from simtrain.scenario import load_unchecked

    num_tokens, numbers = read_tokens(tokens), read_gpus(gpus)
    limits = Limits(days, None if budget is None else read_budget(budget))
    price_per_hour = None if price is None else read_price(price)
    base = load_unchecked(scenario, overrides or ())
    names = [base.cluster] if clusters is None else [one.strip() for one in clusters.split(",")]
    if out:
        make_folder(out, "scenarios")
    with progress_bar() as on_progress, first_interrupt() as interrupted:
        found = plan_training(
            base,
            num_tokens,
            names,
            numbers,
            limits=limits,
            goodput=goodput,
            price=price_per_hour,
            objective=objective,
            workers=workers or _workers(len(names) * len(numbers)),
            seconds=seconds,
            interrupted=interrupted,
            on_progress=on_progress,
        )
    files = write_plan(found, base, out) if out else []

    def data() -> dict[str, Any]:
        plain = found.to_json()
        with_layout = [row for row in plain["rows"] if row["layout"]]
        for row, path in zip(with_layout, files, strict=False):
            row["file"] = str(path)
        return plain

    show(as_json, data, lambda: plan_page(found, out), names)
    if found.fastest is None:
        raise typer.Exit(LIMITS_MISSED)


def _workers(num_combinations: int) -> int:
    """The number of processes by default."""
    from simtrain.system import num_processors

    return min(num_processors(), num_combinations) if num_combinations >= _WORTH_WORKERS else 1
