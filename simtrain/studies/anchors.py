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
from simtrain.studies.cost import read_amount
from simtrain.studies.validation import MeasuredRun, RunSettings, validate_runs
from simtrain.units import parse_seconds


def own_runs(
    texts: Sequence[str],
    load: Callable[[str], Scenario],
    scenario: Scenario,
    overrides: Sequence[str] = (),
) -> tuple[OwnRun, ...]:
    """Simulate one's own runs, which anchor the intervals of results by their likeness.

    Args:
        texts: tables of runs, logs, or files of scenarios with the time that they took or a log,
            such as "train.sbatch=10.5 s". Other software counts if it is of the same family.
        load: loads the scenario of a file.
        scenario: its cluster, and its software if they name none, are those of tables and logs.
        overrides: fields to set in the runs of tables and logs, those of `hardware` alone.

    Raises:
        InputError: a file cannot be read, a text has no time (E904), or no run can be simulated.
    """
    cluster, stack = scenario.cluster, scenario.software.stack
    hardware = tuple(each for each in overrides if each.startswith("hardware."))
    settings = RunSettings(cluster, None, hardware, stack)
    runs: list[MeasuredRun] = []
    for text in texts:
        file, equals, time = text.rpartition("=")
        if not equals:
            runs += registered("read_runs")([Path(text)], settings)
        elif os.path.isfile(time):
            runs += registered("read_runs")([Path(time)], replace(settings, scenario=load(file)))
        else:
            time_s = read_amount(parse_seconds, time, "E904", f"--measured {text}")
            runs.append(MeasuredRun(file, "", file, 1, load(file), time_s))
    rows = validate_runs(runs, cluster).rows
    anchors = tuple(
        OwnRun(traits_of(row.kind)["machine"], row.kind.software, row.shape, -math.log1p(row.error))
        for row in rows
        if row.kind and row.shape and row.error is not None
    )
    if not anchors:
        reason = next((row.refusal for row in rows if row.refusal), "no run has a time")
        fix = "correct it, or compare the runs first: simtrain validate"
        place = Location(f"--measured {' '.join(texts)}")
        raise InputError.of("E904", f"none of {len(rows)} runs counts: {reason}", place, fix)
    return anchors
