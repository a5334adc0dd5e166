"""Who waits for whom, as arrays: a program without its names and its durations.

Many programs share one wiring and differ only in seconds; it is laid out once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import kernels
from simtrain.engine.program import Interference

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Queues:
    """The tasks of each stream, and what each task waits for.

    `queue[queue_starts[s]:queue_starts[s + 1]]` are the tasks of stream s in their order,
    `after[after_starts[i]:after_starts[i + 1]]` what task i waits for.
    """

    queue_starts: Ints
    queue: Ints
    after_starts: Ints
    after: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """`num_tasks` tasks on streams, which are numbered in the order of their first tasks.

    `previous[i]` is the task before task i on its stream (-1 for none). `order` lists the tasks so
    that each comes after all that it waits for; those of a deadlock are left out. It is empty where
    streams slow each other. `slowed_by[s, a]`
    says that stream a slows stream s, by `slowdown[s]`.
    """

    queues: Queues
    previous: Ints
    order: Ints
    contends: NDArray[np.bool_]
    slowed_by: NDArray[np.bool_]
    slowdown: Floats
    contended: bool

    @property
    def num_tasks(self) -> int:
        """Tasks of the program."""
        return len(self.previous)

    @classmethod
    def of(
        cls,
        streams: Sequence[str],
        after: Sequence[tuple[int, ...]],
        contends: Sequence[bool],
        interference: Mapping[str, Interference],
    ) -> Wiring:
        """Lay out the tasks of a program, given as columns."""
        numbers: dict[str, int] = {}
        stream_of = _ints([numbers.setdefault(stream, len(numbers)) for stream in streams])
        after_starts = _ints([0, *itertools.accumulate(map(len, after))])
        after_tasks = _ints([*itertools.chain.from_iterable(after)])
        interferes = _interference(numbers, interference)
        return cls.laid_out(
            stream_of, after_starts, after_tasks, np.array(contends, np.bool_), *interferes
        )

    @classmethod
    def laid_out(
        cls,
        stream_of: Ints,
        after_starts: Ints,
        after: Ints,
        contends: NDArray[np.bool_],
        slowed_by: NDArray[np.bool_],
        slowdown: Floats,
    ) -> Wiring:
        """The tasks of a program, given as arrays; a stream may be without tasks."""
        queue = np.argsort(stream_of, kind="stable").astype(np.int32)
        bounds = np.arange(len(slowdown) + 1)
        queue_starts = np.searchsorted(stream_of[queue], bounds).astype(np.int32)
        contended = bool(slowed_by.any())
        # Streams that slow each other are followed event by event, in no fixed order.
        order = (
            np.empty(0, np.int32)
            if contended
            else kernels.order_of(queue_starts, queue, after_starts, after)
        )
        return cls(
            Queues(queue_starts, queue, after_starts, after),
            _previous(stream_of, queue),
            order,
            contends,
            slowed_by,
            slowdown,
            contended,
        )

    def run(self, duration_s: Floats) -> tuple[Floats, Floats]:
        """Start and end of each task; both are infinite for one that can never start.

        With interference the streams are followed event by event, else the ends are longest paths.
        """
        times: tuple[Floats, Floats]
        queues = self.queues
        after = queues.after_starts, queues.after
        if self.contended:
            slowed = self.contends, self.slowed_by, self.slowdown
            times = kernels.events(queues.queue_starts, queues.queue, *after, *slowed, duration_s)
        else:
            times = kernels.longest_paths(self.order, self.previous, *after, duration_s)
        return times


def _previous(stream_of: Ints, queue: Ints) -> Ints:
    """The task before each on its stream, or -1."""
    previous = np.full(len(queue), -1, np.int32)
    same_stream = stream_of[queue[1:]] == stream_of[queue[:-1]]
    previous[queue[1:][same_stream]] = queue[:-1][same_stream]
    return previous


def _interference(
    numbers: Mapping[str, int], interference: Mapping[str, Interference]
) -> tuple[NDArray[np.bool_], Floats]:
    """Victim by aggressor, and the slowdown of each stream (-1 for one that nothing slows)."""
    slowed_by = np.zeros((len(numbers), len(numbers)), np.bool_)
    slowdown = np.full(len(numbers), -1.0)
    for victim, slowed in interference.items():
        if victim not in numbers:
            continue
        slowdown[numbers[victim]] = slowed.slowdown
        for aggressor in slowed.aggressors:
            if aggressor in numbers:
                slowed_by[numbers[victim], numbers[aggressor]] = True
    return slowed_by, slowdown


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int32)
