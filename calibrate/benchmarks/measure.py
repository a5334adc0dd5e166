"""Measures a machine point by point; points whose record exists are not measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

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
from simtrain.commands.progress import progress_bar
from simtrain.errors import InputError

_MAX_REVISITS = 3
"""Times that doubtful points are measured again: a machine may be busy all the time."""
_PARTS: dict[Part, Sequence[Callable[[Sizes, Timer], list[Point]]]] = {
    Part.PRODUCTS: [product_points],
    Part.KERNELS: [kernel_points, attention_points, host_points],
    Part.COLLECTIVES: [collective_points, overlap_points],
    Part.LAYERS: [memory_points, layer_points],
    Part.ITERATIONS: [iteration_points],
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The ranks of a measurement, and its numbers of old and of new records."""

    ranks: Ranks
    num_before: int
    num_added: int


def measure(folder: Path, device: str, sizes: Sizes, parts: Collection[Part]) -> Measured:
    """Measure the points whose records `folder` lacks, on "cuda" or "cpu".

    Then measure the doubtful ones again: the machine may have been busy for a moment.

    Raises:
        InputError: E702, no GPU; E714, no NCCL; E715, another rank or torchrun died; E716, one
            process shall measure collectives only; or as `RecordFile`.
    """
    launcher = os.getppid()
    with joined(device) as ranks:
        if ranks.size == 1 and set(parts) == {Part.COLLECTIVES}:
            fix = "torchrun --nproc-per-node 2 -m calibrate measure --out DIR --only collectives"
            message = "collectives need two processes, and there is one"
            raise InputError.of("E716", message, fix=fix)
        file, known = _open(folder, device, ranks)
        points = points_of(parts, sizes, Timer(device, sizes.budget_s, ranks))
        missing = [point for point in points if point.identity not in known]
        with progress_bar() if ranks.is_first else nullcontext(lambda *_: None) as show:
            todo = missing
            for _ in range(1 + _MAX_REVISITS):
                for number, point in enumerate(todo):
                    show(point.kind.model_fields["kind"].default, number, len(todo))
                    record = point.record()
                    check_launcher(launcher)
                    if file is not None:
                        file.write(record)
                doubted = set(map(identity, doubtful(file.records))) if file else set()
                doubted = ranks.from_first(doubted)
                todo = [point for point in missing if point.identity in doubted]
        return Measured(ranks, len(known), len(missing))


def points_of(parts: Collection[Part], sizes: Sizes, timer: Timer) -> list[Point]:
    """All points of these parts, in order."""
    makers = [points for part in Part if part in parts for points in _PARTS[part]]
    return [point for points in makers for point in points(sizes, timer)]


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
