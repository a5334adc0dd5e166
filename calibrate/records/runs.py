"""Reads measured iterations: tables, logs, or a scenario with its time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simtrain.errors import InputError, Location
from simtrain.importing.runs import MeasuredRun, RunSettings, read_runs
from simtrain.scenario import load_scenario
from simtrain.studies.validation.measured import wrong_time
from simtrain.units import UnitError, parse_seconds

_IS_SCENARIO = ".yaml", ".yml", ""


def read_measured_runs(
    sources: Sequence[Path], settings: RunSettings, iteration: str | None = None
) -> list[MeasuredRun]:
    """Read the runs of all sources.

    Args:
        sources: tables and logs; with `iteration` one scenario, a file or a shipped one.
        settings: what the command line says about all runs.
        iteration: the measured time of that scenario, such as "12.4 s".

    Raises:
        InputError: a source cannot be read, or does not go with `iteration` (E725).
    """
    scenarios = [source for source in sources if source.suffix in _IS_SCENARIO]
    if iteration is None:
        scenarios = [source for source in scenarios if source.suffix or not source.exists()]
        if scenarios:
            message = f"{scenarios[0]} is a scenario, which has no measured time"
            raise InputError.of("E725", message, fix="add --iteration TIME, such as '12.4 s'")
        return [*read_runs(sources, settings)]
    if len(sources) != 1 or not scenarios:
        message = f"--iteration is the time of one scenario, not of {len(sources)} sources"
        if len(sources) == 1:
            message = f"--iteration is the time of a scenario, and {sources[0]} is none"
        fix = "remove --iteration, or write one scenario (.yaml)"
        raise InputError.of("E725", message, fix=fix)
    try:
        time_s = parse_seconds(iteration)
    except UnitError as error:
        raise InputError.of(
            "E725", f"--iteration: {error}", Location("--iteration"), error.fix
        ) from None
    if why := wrong_time(time_s):
        fix = "write the time of one iteration with its unit"
        raise InputError.of("E725", why, Location("--iteration"), fix)
    scenario = load_scenario(sources[0], settings.assignments)
    name = scenario.name or sources[0].stem
    return [MeasuredRun(name, name, str(sources[0]), 1, scenario, time_s)]
