"""Measures a machine point by point; points whose record exists are not measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrate.benchmarks.collectives import collective_points, overlap_points
from calibrate.benchmarks.host import host_points
from calibrate.benchmarks.iterations import iteration_points
from calibrate.benchmarks.kernels import attention_points, kernel_points
from calibrate.benchmarks.layers import layer_points, memory_points
from calibrate.benchmarks.machine import header
from calibrate.benchmarks.products import product_points
from calibrate.benchmarks.ranks import Ranks, check_launcher, joined
from calibrate.benchmarks.sizes import Part, Sizes
from calibrate.benchmarks.timing import Timer
from calibrate.records.checks import doubtful
from calibrate.records.file import Point, RecordFile, identity
from simtrain.errors import InputError

_MAX_REVISITS = 3
"""Times that doubtful points are measured again: a machine may be busy all the time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The ranks of a measurement, and its numbers of old and of new records."""

    ranks: Ranks
    num_before: int
    num_added: int


def measure(folder: Path, device: str, sizes: Sizes, parts: Collection[Part]) -> Measured:
    """Measure the points whose records `folder` lacks, on "cuda" or "cpu".

    Raises:
        InputError: E702, no GPU; E714, no NCCL; E715, another rank or torchrun died; E716, one
            process shall measure collectives only; or as `RecordFile`.
    """
    launcher = os.getppid()
    with joined(device) as ranks:
        _check_enough(ranks, parts)
        timer = Timer(device, sizes.budget_s, ranks)
        file, known = _open(folder, device, ranks)
        missing = [p for p in points_of(parts, sizes, timer) if p.identity not in known]
        with _progress(ranks) as progress:
            task = progress.add_task("", total=len(missing))
            for point in missing:
                progress.update(task, description=point.kind.model_fields["kind"].default)
                record = point.record(point.measure())
                check_launcher(launcher)
                if file is not None:
                    file.append(record)
                progress.advance(task)
            for _ in range(_MAX_REVISITS):
                _revisit(missing, file, ranks, launcher)
        return Measured(ranks, len(known), len(missing))


def points_of(parts: Collection[Part], sizes: Sizes, timer: Timer) -> list[Point]:
    """All points of these parts, in order."""
    return [
        point
        for part in Part
        if part in parts
        for points in _PARTS[part]
        for point in points(sizes, timer)
    ]


def _open(folder: Path, device: str, ranks: Ranks) -> tuple[RecordFile | None, set[str]]:
    """The file, on rank 0 alone, and the identities of its records, on all ranks."""
    file, known, failure = None, set[str](), None
    if ranks.is_first:
        try:
            file = RecordFile(folder, header(device, ranks))
            known = file.known
        except InputError as error:
            failure = error.problems
    known, failure = ranks.from_first((known, failure))
    if failure:
        raise InputError(failure)
    return file, known


def _revisit(points: Sequence[Point], file: RecordFile | None, ranks: Ranks, launcher: int) -> None:
    """Measure the doubtful points again: the machine may have been busy for a moment."""
    doubted = ranks.from_first(set(map(identity, doubtful(file.records))) if file else None)
    for point in points:
        if point.identity in doubted:
            record = point.record(point.measure())
            check_launcher(launcher)
            if file is not None:
                file.replace(record)


def _check_enough(ranks: Ranks, parts: Collection[Part]) -> None:
    if ranks.size == 1 and set(parts) == {Part.COLLECTIVES}:
        fix = "torchrun --nproc-per-node 2 -m calibrate measure --out DIR --only collectives"
        message = "collectives need two processes, and there is one"
        raise InputError.of("E716", message, fix=fix)


_PARTS: dict[Part, Sequence[Callable[[Sizes, Timer], list[Point]]]] = {
    Part.PRODUCTS: [product_points],
    Part.KERNELS: [kernel_points, attention_points, host_points],
    Part.COLLECTIVES: [collective_points, overlap_points],
    Part.LAYERS: [memory_points, layer_points],
    Part.ITERATIONS: [iteration_points],
}


def _progress(ranks: Ranks) -> Progress:
    return Progress(
        TextColumn("{task.description:10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not ranks.is_first,
    )
