"""Write an iteration as a trace for Perfetto or Holistic Trace Analysis, or as a schedule."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from simtrain.base.output_folder import as_path, check_suffix, make_folder, replacing, writing_to
from simtrain.engine.compiled import Flags
from simtrain.errors import InputError, Location
from simtrain.iteration.report.result import Result, check_is_result
from simtrain.iteration.report.windows import check_selection
from simtrain.render.traces import SCHEDULE, SUFFIXES
from simtrain.render.traces.chrome import write_chrome
from simtrain.render.traces.events import PassSlices, TraceEvents

_COMPRESSION = 3
"""Level of zlib: files are 10 % larger than at the default level, in a third of the time."""


def check_trace_file(file: Path) -> None:
    """Check the name of a trace; a name without a suffix is a folder.

    Raises:
        InputError: the suffix is unknown (E117).
    """
    if file.suffix or not file.name:  # the empty path is the current folder
        check_suffix(file, SUFFIXES, "traces")


def write_trace(
    result: Result,
    file: str | Path,
    microbatches: Sequence[int] | None = None,
    window_s: tuple[float, float] | None = None,
) -> None:
    """Write a trace, and replace an existing file.

    Args:
        result: the iteration.
        file: a file whose suffix says the format (`.json.gz`, `.json`, `.csv`), or a folder for a
            Chrome trace of each rank.
        microbatches: passes of these microbatches show their kernels and collectives.
        window_s: passes that run in this window show them. With `microbatches` too, a pass must
            match both. By default, all passes of a folder and no pass of a file show them.

    Raises:
        InputError: the suffix is unknown (E117), a microbatch does not exist or the window shows
            nothing (E118), the file cannot be written, or the folder has traces of other ranks
            (E113).
    """
    check_is_result(result)
    file = as_path(file)
    check_trace_file(file)
    if file.name.lower().endswith(SCHEDULE):
        with open_trace(file) as target:
            target.write(result.plan.schedule.to_csv().encode())
        return
    detailed = _detailed(result, microbatches, window_s)
    if not file.suffix and microbatches is None and window_s is None:
        detailed[:] = True
    events = TraceEvents(result, PassSlices(result, detailed))
    stages = range(result.num_stages)
    if not file.suffix:
        make_folder(file, "traces")
        files = [file / f"rank_{events.place(stage)[0]}.json.gz" for stage in stages]
        _check_no_other_rank(file, files)
        for stage, stage_file in zip(stages, files, strict=True):
            with open_trace(stage_file) as target:
                write_chrome(events, [stage], target, critical_path=False)
        return
    with open_trace(file) as target:
        write_chrome(events, stages, target, critical_path=True)


def _check_no_other_rank(folder: Path, files: Sequence[Path]) -> None:
    """Refuse a folder with traces of other ranks: programs read all files of a folder together."""
    if others := sorted({*folder.glob("rank_*.json.gz")}.difference(files)):
        message = "the folder has traces of other ranks, which would be read together with these"
        fix = "choose another folder with -o, or remove these traces"
        raise InputError.of("E113", message, Location(str(others[0])), fix)


@contextmanager
def open_trace(file: Path) -> Iterator[IO[bytes]]:
    """Open a trace to write; the file appears when it is complete."""
    with writing_to(file, "a trace"), ExitStack() as stack:
        unfinished = stack.enter_context(replacing(file))
        target: IO[bytes] = stack.enter_context(unfinished.open("wb"))
        if file.suffix.lower() == ".gz":
            # Without a name and a time, equal traces are equal files.
            target = stack.enter_context(
                gzip.GzipFile("", "wb", _COMPRESSION, target, mtime=0)  # type: ignore[arg-type]
            )
        yield target


def _detailed(
    result: Result, microbatches: Sequence[int] | None, window_s: tuple[float, float] | None
) -> Flags:
    passes = result.passes
    if microbatches is None and window_s is None:
        return np.zeros(len(passes.first), np.bool_)
    chosen = np.ones(len(passes.first), np.bool_)
    if microbatches is not None:
        wanted = [*microbatches]
        last = result.plan.schedule.num_microbatches - 1
        for number in wanted:
            if not 0 <= number <= last:
                fix = f"choose from 0 to {last}" if last else "choose 0, the only one"
                message, place = f"there is no microbatch {number}", Location("microbatches")
                raise InputError.of("E118", message, place, fix)
        chosen &= np.isin(passes.microbatches, wanted).any(axis=1)
    if window_s is not None:
        _, (start_s, end_s) = check_selection(result, None, window_s)
        starts_s, ends_s = result.timeline.start_s[passes.first], result.timeline.end_s[passes.last]
        chosen &= (ends_s > start_s) & (starts_s < end_s)
        if not chosen.any():
            what = "no pass" if microbatches is None else "no pass of these microbatches"
            fix = "choose a window in which one runs: a trace without a choice shows when"
            raise InputError.of("E118", f"{what} runs in this window", Location("window"), fix)
    return chosen
