"""The tasks of an iteration as arrays, without their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from simtrain.engine import ProgramBuilder
from simtrain.engine.compiled import Floats, Ints, run_loop
from simtrain.engine.idle import idle_seconds
from simtrain.engine.wiring import Wiring
from simtrain.programs.iteration_layout import iteration_layout
from simtrain.programs.pipeline import stage_stream
from simtrain.programs.structure import IterationStructure, Slot

_REMEMBERED = 3_000_000
"""Tasks, at some forty bytes each, that are remembered for further scenarios."""


@dataclass(frozen=True, slots=True, eq=False)
class IterationTasks:
    """The tasks of an iteration, and what a breakdown by stage needs to know of them.

    Args:
        slots, slot_of: task i lasts as long as `slots[slot_of[i]]` says.
        num_slots: [stages, slots], how many tasks of each slot a stage's own stream has.
        own: [stages], the stream on which each stage computes.
        others, part_of: [stages, n], the other streams for which each stage may wait, and the part
            of each: transfers and the embedding's all-reduce (0), the stage's gradient buckets (1),
            the gradient norm (2). Short rows are filled up as `idle_seconds` wants it.
    """

    wiring: Wiring
    slots: tuple[Slot, ...]
    slot_of: Ints
    num_slots: NDArray[np.int64]
    own: Ints
    others: Ints
    part_of: Ints

    @classmethod
    def of(cls, builder: ProgramBuilder, num_stages: int) -> IterationTasks:
        """The tasks of an iteration that was laid out."""
        streams = builder.streams
        own = np.array([streams[stage_stream(stage)] for stage in range(num_stages)], np.int32)
        waits: list[list[tuple[int, int]]] = [[] for _ in range(num_stages)]
        for name, stream in streams.items():
            part, stages = _waiting(name, num_stages)
            for stage in stages:
                waits[stage].append((part, stream))
        longest = max(map(len, waits))
        filled = [
            sorted(row) + [(0, stream)] * (longest - len(row))
            for row, stream in zip(waits, own.tolist(), strict=True)
        ]
        part_of, others = np.array(filled, np.int32).transpose(2, 0, 1).copy()
        stage_of = np.full(len(streams), num_stages)
        stage_of[own] = np.arange(num_stages)
        slot_of = np.array(builder.slot_of, np.int32)
        shape = num_stages + 1, len(builder.slots)
        counted = stage_of[builder.stream_of] * shape[1] + slot_of
        return cls(
            wiring=builder.wiring,
            slots=cast("tuple[Slot, ...]", tuple(builder.slots)),
            slot_of=slot_of,
            num_slots=np.bincount(counted, minlength=shape[0] * shape[1]).reshape(shape)[:-1],
            own=own,
            others=others,
            part_of=part_of,
        )

    def run(self, seconds: Callable[[Any], float]) -> tuple[Floats, Floats]:
        """Start and end of each task."""
        lasting_s = np.array([seconds(slot) for slot in self.slots])
        return self.wiring.run(lasting_s[self.slot_of])

    def idle_seconds(self, start_s: Floats, end_s: Floats, *, is_compiled: bool) -> Floats:
        """[stages, parts], seconds for which each stage is idle while something of a part runs."""
        waits = self.own, self.others, self.part_of
        queues = self.wiring.queues
        tasks = queues.queue_starts, queues.queue, start_s, end_s, end_s.max()
        seconds: Floats = run_loop(idle_seconds, *waits, *tasks, is_compiled=is_compiled)
        return seconds


@cached(LRUCache(_REMEMBERED, lambda tasks: tasks.wiring.num_tasks))
def tasks_of(structure: IterationStructure) -> IterationTasks:
    """The tasks of all iterations of a structure."""
    builder, _ = iteration_layout(structure)
    return IterationTasks.of(builder, structure.num_stages)


def _waiting(stream: str, num_stages: int) -> tuple[int, Iterable[int]]:
    """The part of a stream, and the stages that may wait for it."""
    match stream.split():
        case ["link" | "wrap", ends]:
            return 0, {int(end) for end in ends.split("->")}
        case ["embedding"]:
            return 0, {0, num_stages - 1}
        case ["data", stage]:
            return 1, (int(stage),)
        case ["model"]:
            return 2, range(num_stages)
    return 0, ()
