"""`simtrain compare`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    SetOption,
    shipped_scenarios,
    show,
    simulated,
    status,
)
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.pages.compare_page import Compared
    from simtrain.scenario import Scenario


def compare(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Scenario files, or names of scenarios that come with simtrain. "
            "The others are compared with the first.",
            autocompletion=shipped_scenarios,
        ),
    ],
    overrides: SetOption = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--change",
            help="Compare the first scenario also with itself, this field changed: "
            "recompute=full. May be repeated; all changes make one scenario.",
        ),
    ] = None,
    as_json: JsonOption = False,
    allow_oom: AllowOomOption = False,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity/--no-sensitivity",
            help="Simulate each scenario again with 10 % more of each resource of the cluster.",
        ),
    ] = True,
) -> None:
    """Compare scenarios: why one is slower than another, and what hardware to buy first.

    Each scenario is compared with the first one. The causes of the difference add up to it. A field
    given by --set is set in all scenarios. For a single scenario, only what to buy is shown.

    Example: simtrain compare table5_175b_full table5_175b_present
    """
    from simtrain.pages.compare_page import compare_page
    from simtrain.report.difference import compare as find
    from simtrain.scenario import load_scenario

    shared = overrides or []
    loaded = [(name, load_scenario(name, shared)) for name in scenarios]
    if changes:
        name = " ".join([scenarios[0], *changes])
        with _errors_of_changes(changes):
            loaded.append((name, load_scenario(scenarios[0], [*shared, *changes])))
    if len(loaded) == 1 and not sensitivity:
        message = "a single scenario with --no-sensitivity leaves nothing to show"
        fix = "give two scenarios, or --change, or leave out --no-sensitivity"
        raise InputError.of("E843", message, Location("--no-sensitivity"), fix)
    found = [_compared(name, one, allow_oom, sensitivity) for name, one in loaded]
    results = [one.result for one in found]
    clusters = [one.scenario.cluster for one in results]
    differences = find(results) if len(results) > 1 else ()

    def data() -> dict[str, Any]:
        others = zip(found[1:], differences, strict=True)
        return {
            "scenarios": [_as_json(one) for one in found],
            "differences": [
                {"base": found[0].name, "other": other.name} | difference.to_json()
                for other, difference in others
            ],
        }

    show(as_json, data, lambda: compare_page(found, differences), clusters)


@contextmanager
def _errors_of_changes(changes: list[str]) -> Iterator[None]:
    """Name `--change` instead of `--set` as the place of an error in one of the changes."""
    places: dict[Location | None, Location] = {
        Location(f"--set {one}"): Location(f"--change {one}") for one in changes
    }
    try:
        yield
    except InputError as error:
        moved = [
            replace(one, location=places.get(one.location, one.location)) for one in error.problems
        ]
        raise InputError(moved) from None


def _compared(name: str, scenario: Scenario, allow_oom: bool, sensitivity: bool) -> Compared:
    from simtrain.pages.compare_page import Compared
    from simtrain.sensitivity import sensitivity_of

    result = simulated(scenario, allow_oom)
    if not sensitivity:
        return Compared(name, result)
    with status(f"simulating {name} on faster hardware") as show_status:
        return Compared(
            name,
            result,
            sensitivity_of(scenario, on_progress=lambda one: show_status(f"{name}, {one}")),
        )


def _as_json(compared: Compared) -> dict[str, Any]:
    result, sensitivity = compared.result, compared.sensitivity
    return {
        "name": compared.name,
        "iteration_time_s": result.iteration_time_s,
        "tokens_per_s": result.tokens_per_s,
        "mfu": result.mfu,
        "peak_bytes": result.memory.fullest.peak_bytes,
        "capacity_bytes": result.memory.capacity_bytes,
        "num_gpus": result.scenario.num_gpus,
        "breakdown_s": result.breakdown_s,
        "critical_path_s": result.critical_path_s,
        "with_more": sensitivity.to_json() if sensitivity else None,
    }
