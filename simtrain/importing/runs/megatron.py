"""Read a log of Megatron-LM, or its arguments alone, as one measured run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simtrain.base.file_kinds import MOST_BYTES_OF_LOG
from simtrain.base.importer import ImportRequest
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError, Location
from simtrain.importing.megatron.arguments import NOT_MODELLED
from simtrain.importing.megatron.scenario_draft import draft_of
from simtrain.importing.megatron.source import prints_arguments, read_source
from simtrain.scenario import Scenario
from simtrain.studies.validation.measured import (
    MeasuredRun,
    PeakOf,
    RunSettings,
    in_one_line,
    wrong_peak,
    wrong_time,
)

_NUMBER = r" *(\d{1,15}(?:\.\d{0,15})?)(?=[\s|]|$)"
_ITERATION = re.compile(rf"elapsed time per iteration \(ms\):{_NUMBER}", re.MULTILINE)
_PEAK = re.compile(rf"\| *max allocated:{_NUMBER}", re.MULTILINE)
_MEGABYTE = 1 << 20
"""Megatron-LM's report_memory divides by 1024 twice (megatron/training/utils.py)."""
_WARM_UP = 5
"""First lines of iterations, which include compilation and first allocations."""


def is_log(file: Path) -> bool:
    """Return whether a file is a log of Megatron-LM with printed arguments."""
    return prints_arguments(read_text(file, MOST_BYTES_OF_LOG).splitlines())


def read_log(file: Path, settings: RunSettings) -> MeasuredRun:
    """Read a log; its time is the median of its iterations but the first five, if it has more.

    Lines whose number is cut or garbled count as if they were missing.

    Raises:
        InputError: the file cannot be read, or has no time of an iteration (E892).
    """
    text = read_text(file, MOST_BYTES_OF_LOG)
    numbers_s = (1e-3 * float(match[1]) for match in _ITERATION.finditer(text))
    times_s = [time_s for time_s in numbers_s if not wrong_time(time_s)]
    num_lines = text.count("\n") + 1
    if not times_s:
        message = "the log has no line with 'elapsed time per iteration (ms)' and a time"
        fix = "give a log that is not cut before its first iterations (--log-interval)"
        raise InputError.of("E892", message, Location(str(file), num_lines), fix)
    sizes = (float(match[1]) * _MEGABYTE for match in _PEAK.finditer(text))
    peaks = [peak_bytes for peak_bytes in sizes if not wrong_peak(peak_bytes)]
    run = MeasuredRun(
        file.stem,
        file.stem,
        str(file),
        1,
        iteration_time_s=statistics.median(times_s[_WARM_UP:] or times_s),
        peak_bytes=max(peaks, default=None),
        peak_of=PeakOf.TENSORS,
    )
    try:
        scenario, assumed = import_arguments(str(file), settings.assignments)
    except InputError as error:
        return replace(run, refusal=in_one_line(error))
    return replace(run, scenario=scenario, assumed=assumed)


def import_arguments(source: str, overrides: Sequence[str]) -> tuple[Scenario, list[str]]:
    """Return the scenario of arguments or of a log, and what of the arguments is not modelled.

    Raises:
        InputError: as `megatron_draft`, but for unknown arguments, which are noted; or an argument
            has an effect so large that the run cannot be compared (E893).
    """
    draft = draft_of(
        read_source(source), ImportRequest(source, overrides=overrides, ignore_unknown=True)
    )
    for name, effect in NOT_MODELLED.items():
        setting = draft.given(name) if effect.is_large else None
        if setting and effect.applies(setting.value):
            message = f"{setting.words} is not modelled: {effect.text}"
            raise InputError.of("E893", message, setting.place, "compare a run without it")
    return draft.finished()[0], draft.notes
