"""Who waits for whom, as arrays: a program without its names and its durations.

Many programs share one wiring and differ only in seconds; it is laid out once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simtrain.engine import kernels
from simtrain.engine.compiled import Flags, Floats, Ints, compiled
from simtrain.engine.program import Interference, Program
from simtrain.engine.timeline import Timeline


class Queues(NamedTuple):
    """The tasks of each stream, and what each task waits for.

    `queue[queue_starts[s]:queue_starts[s + 1]]` are the tasks of stream s in their order,
    `after[after_starts[i]:after_starts[i + 1]]` what task i waits for.
    """

    queue_starts: Ints
    queue: Ints
    after_starts: Ints
    after: Ints


class Contention(NamedTuple):
    """Streams that slow each other.

    Task i slows others while it runs if `contends[i]`. Stream a slows stream s if
    `slowed_by[s, a]`, by `slowdown[s]` (-1 if nothing slows s).
    """

    contends: Flags
    slowed_by: Flags
    slowdown: Floats

    @classmethod
    def of(
        cls, contends: Flags, interference: Mapping[str, Interference], streams: Mapping[str, int]
    ) -> Contention | None:
        """The contention of streams with these names and numbers; None if none slows another."""
        num_streams = max(streams.values(), default=-1) + 1
        slowed_by = np.zeros((num_streams, num_streams), np.bool_)
        slowdown = np.full(num_streams, -1.0)
        for victim, slowed in interference.items():
            aggressors = [streams[stream] for stream in slowed.aggressors if stream in streams]
            if victim in streams and aggressors:
                slowdown[streams[victim]] = slowed.slowdown
                slowed_by[streams[victim], aggressors] = True
        return cls(contends, slowed_by, slowdown) if slowed_by.any() else None


@dataclass(frozen=True, eq=False)
class Wiring:
    """Tasks on streams. `previous[i]` is the task before task i on its stream (-1 for none)."""

    queues: Queues
    previous: Ints
    contention: Contention | None

    @property
    def num_tasks(self) -> int:
        """Tasks of the program."""
        return len(self.previous)

    @classmethod
    def of(
        cls,
        num_streams: int,
        stream_of: Sequence[int] | Ints,
        after_starts: Ints,
        after: Ints,
        contention: Contention | None = None,
    ) -> Wiring:
        """Lay out tasks.

        Args:
            num_streams: a stream may be without tasks.
            stream_of: the number of each task's stream.
            after_starts, after: as in `Queues`.
            contention: None if no stream slows another.
        """
        streams = np.asarray(stream_of, np.int32)
        queue = np.argsort(streams, kind="stable").astype(np.int32)
        sorted_streams = streams[queue]
        queue_starts = np.searchsorted(sorted_streams, np.arange(num_streams + 1)).astype(np.int32)
        previous = np.full(len(queue), -1, np.int32)
        same_stream = sorted_streams[1:] == sorted_streams[:-1]
        previous[queue[1:][same_stream]] = queue[:-1][same_stream]
        return cls(Queues(queue_starts, queue, after_starts, after), previous, contention)

    @cached_property
    def order(self) -> Ints:
        """Tasks, each after all that it waits for; tasks of a deadlock are left out."""
        order: Ints = compiled(kernels.order_of)(*self.queues)
        return order

    def run(self, duration_s: Floats) -> tuple[Floats, Floats]:
        """Start and end of each task; both are infinite for one that can never start.

        With contention the streams are followed event by event, else the ends are longest paths.
        """
        times: tuple[Floats, Floats]
        queues = self.queues
        if self.contention is not None:
            times = compiled(kernels.events)(*queues, *self.contention, duration_s)
        else:
            after = queues.after_starts, queues.after
            times = compiled(kernels.longest_paths)(self.order, self.previous, *after, duration_s)
        return times


def concatenated(after: Sequence[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """What each task waits for, as `after_starts` and `after` of `Queues`."""
    starts = [0, *itertools.accumulate(map(len, after))]
    return np.array(starts, np.int32), np.array([*itertools.chain.from_iterable(after)], np.int32)


def simulate_compiled(program: Program) -> Timeline:
    """Find when each task starts and ends; to the last bit what SimPy finds.

    Tasks that can never start are left with infinite times.
    """
    tasks = program.tasks
    streams: dict[str, int] = {}
    stream_of = [streams.setdefault(task.stream, len(streams)) for task in tasks]
    contends = np.array([task.contends for task in tasks], np.bool_)
    wiring = Wiring.of(
        len(streams),
        stream_of,
        *concatenated([task.after for task in tasks]),
        Contention.of(contends, program.interference, streams),
    )
    start_s, end_s = wiring.run(np.array([task.duration_s for task in tasks], np.float64))
    return Timeline(program, tuple(start_s.tolist()), tuple(end_s.tolist()))
