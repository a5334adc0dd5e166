"""One's own measured runs, whose errors anchor the intervals of runs like them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from simtrain.base.registered import registered
from simtrain.base.values import replace
from simtrain.errors import InputError, Location
from simtrain.hardware.evidence import traits_of
from simtrain.hardware.likeness import OwnRun
from simtrain.scenario import Scenario
from simtrain.studies.validation import (
    MeasuredRun,
    RunSettings,
    ValidatedRun,
    validate_runs,
    wrong_peak,
    wrong_time,
)
from simtrain.units import UnitError, parse_bytes, parse_seconds


def own_runs(
    texts: Sequence[str],
    load: Callable[[str], Scenario],
    scenario: Scenario,
    overrides: Sequence[str] = (),
) -> tuple[OwnRun, ...]:
    """Simulate one's own runs, which anchor the intervals of results by their likeness.

    Args:
        texts: tables of runs, logs, or files of scenarios with what was measured or a log, such as
            "train.sbatch=10.5 s, 61.3 GiB". Other software counts if it is of the same family.
        load: loads the scenario of a file.
        scenario: its cluster, and its software if they name none, are those of tables and logs.
        overrides: fields to set in the runs of tables and logs, those of `hardware` alone.

    Raises:
        InputError: a file cannot be read, a text has no time and no peak (E904), or no run can be
            simulated.
    """
    cluster, stack = scenario.cluster, scenario.software.stack
    hardware = tuple(each for each in overrides if each.startswith("hardware."))
    settings = RunSettings(cluster, None, hardware, stack)
    runs: list[MeasuredRun] = []
    for text in texts:
        file, equals, values = text.rpartition("=")
        if not equals:
            runs += registered("read_runs")([Path(text)], settings)
        elif os.path.isfile(values):
            runs += registered("read_runs")([Path(values)], replace(settings, scenario=load(file)))
        else:
            measured = _measured(file, values)
            runs.append(MeasuredRun(file, "", file, 1, load(file), *measured))
    rows = validate_runs(runs, cluster).rows
    anchors = tuple(
        OwnRun(traits_of(row.kind)["machine"], row.kind.software, row.shape, *_logs(row))
        for row in rows
        if row.kind and row.shape and row.ran and _logs(row) != [None, None]
    )
    if not anchors:
        reason = next((row.refusal for row in rows if row.refusal), "no run has a time or a peak")
        fix = "correct it, or compare the runs first: simtrain validate"
        place = Location(f"--measured {' '.join(texts)}")
        raise InputError.of("E904", f"none of {len(rows)} runs counts: {reason}", place, fix)
    return anchors


def _logs(row: ValidatedRun) -> list[float | None]:
    """Return ln(measured / simulated) of a run's time and of its peak."""
    errors = row.error, row.peak_error
    return [None if error is None else -math.log1p(error) for error in errors]


def _measured(file: str, text: str) -> tuple[float | None, float | None]:
    """Return the time and the peak of a text such as "10.5 s, 61.3 GiB", which may have only one.

    Raises:
        InputError: it has neither, or one of them twice (E904).
    """
    values = dict[bool, float]()
    for part in text.split(","):
        is_peak = part.rstrip().endswith("B")
        try:
            value = parse_bytes(part) if is_peak else parse_seconds(part)
            problem = wrong_peak(value) if is_peak else wrong_time(value)
            problem = "a run has one time and one peak" if is_peak in values else problem
        except UnitError as error:
            value, problem = 0.0, str(error)
        if problem:
            fix = f'write "{file}=10.5 s", "{file}=61.3 GiB" or "{file}=10.5 s, 61.3 GiB"'
            raise InputError.of("E904", problem, Location(f"--measured {file}={text}"), fix)
        values[is_peak] = value
    return values.get(False), values.get(True)
