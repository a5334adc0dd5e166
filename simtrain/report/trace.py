"""Writes a timeline as a trace that Perfetto and Holistic Trace Analysis read, or as a schedule."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from simtrain.errors import InputError
from simtrain.output_folder import check_suffix, make_folder, writing_to
from simtrain.report.activities import check_selection
from simtrain.report.result import Result
from simtrain.report.trace_events import TraceEvents

_SUFFIXES = (".json.gz", ".json", ".csv")
_COMPRESSION = 3
"""zlib's level: a tenth larger than the default, in a third of the time."""


def check_trace_file(file: Path) -> None:
    """Check the suffix of a trace; a name without one is a folder.

    Raises:
        InputError: the suffix is unknown (E117).
    """
    if file.suffix:
        check_suffix(file, _SUFFIXES, "traces")


def write_trace(
    result: Result,
    file: Path,
    microbatches: Sequence[int] | None = None,
    window_s: tuple[float, float] | None = None,
) -> None:
    """Write a trace, and replace an older one.

    Args:
        result: the iteration.
        file: `.json` or `.json.gz` for a Chrome trace of all ranks, `.csv` for the schedule in
            the format of PyTorch's pipelining, or a folder for a Chrome trace of each rank.
        microbatches: the passes of these microbatches show their kernels and collectives.
        window_s: the passes that run in this time do so; with `microbatches`, those of both.

    Raises:
        InputError: the suffix is unknown (E117), a microbatch does not exist or the window shows
            nothing (E118), or the file cannot be written (E113).
    """
    check_trace_file(file)
    events = TraceEvents(result, _detailed(result, microbatches, window_s))
    stages = range(result.num_stages)
    if not file.suffix:
        make_folder(file, "traces")
        for stage in stages:
            _write(events, [stage], file / f"rank_{events.rank(stage)}.json.gz")
    elif file.name.endswith(".csv"):
        with writing_to(file, "a trace"):
            file.write_text(result.plan.schedule.to_csv(), encoding="utf-8", newline="")
    else:
        _write(events, stages, file)


def _write(events: TraceEvents, stages: Sequence[int], file: Path) -> None:
    with writing_to(file, "a trace"), ExitStack() as stack:
        target: IO[bytes] = stack.enter_context(file.open("wb"))
        if file.suffix == ".gz":
            # Without a name and a time, equal traces are equal files.
            target = stack.enter_context(
                gzip.GzipFile("", "wb", _COMPRESSION, target, mtime=0)  # type: ignore[arg-type]
            )
        _write_events(events, stages, target)


def _write_events(events: TraceEvents, stages: Sequence[int], target: IO[bytes]) -> None:
    result, separator = events.result, ""
    header = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "traceName": result.scenario.name or "unnamed",
        "distributedInfo": {
            "backend": "nccl",
            "rank": events.rank(stages[0]),
            "world_size": result.scenario.num_gpus,
        },
    }
    target.write(f'{json.dumps(header)[:-1]}, "traceEvents": [\n'.encode())
    for stage in stages:
        target.write((separator + ",\n".join(events.of_stage(stage))).encode())
        separator = ",\n"
    target.write(b"\n]}\n")


def _detailed(
    result: Result, microbatches: Iterable[int] | None, window_s: tuple[float, float] | None
) -> NDArray[np.bool_]:
    """[actions], whether each pass shows its kernels."""
    schedule = result.plan.schedule
    if microbatches is None and window_s is None:
        return np.zeros(len(schedule.kind), np.bool_)
    chosen = np.ones(len(schedule.kind), np.bool_)
    if microbatches is not None:
        wanted = [*microbatches]
        last = schedule.num_microbatches - 1
        for one in wanted:
            if not 0 <= one <= last:
                fix = f"choose microbatches from 0 to {last}"
                raise InputError.of("E118", f"there is no microbatch {one}", fix=fix)
        chosen &= np.isin(schedule.microbatch, wanted)
    if window_s is not None:
        _, (start_s, end_s) = check_selection(result, None, window_s)
        starts_s, ends_s = result.iteration.intervals_s(slice(None))
        chosen &= (ends_s > start_s) & (starts_s < end_s)
    return chosen
