"""The tasks of an iteration for the compiled executor, without their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cachetools import LRUCache, cached

from simtrain.engine.wiring import Floats, Ints, Wiring
from simtrain.programs.optimizer_step import EMBEDDING_STREAM, MODEL_STREAM, data_stream
from simtrain.programs.pipeline import stage_stream
from simtrain.programs.structure import IterationStructure, Slot, iteration_layout

_REMEMBERED = 3_000_000
"""Tasks, at some forty bytes each, that are remembered for further scenarios."""


@dataclass(frozen=True, slots=True, eq=False)
class IterationTasks:
    """Tasks, their slots, their kinds by number, and where they belong.

    `own` are the streams of the stages. `others[stage, part]` are streams on which something may
    run for which a stage waits (-1 for none): the transfers and the embedding's all-reduce that it
    takes part in, its gradient buckets, and the norm for which all stages meet.
    """

    wiring: Wiring
    slots: tuple[Slot, ...]
    slot_of: Ints
    kinds: tuple[str, ...]
    kind_of: Ints
    own: Ints
    others: Ints

    def seconds_by_kind(self, start_s: Floats, end_s: Floats) -> dict[str, float]:
        """Seconds of all tasks of each kind."""
        sums = np.bincount(self.kind_of, end_s - start_s, len(self.kinds))
        return dict(zip(self.kinds, sums.tolist(), strict=True))

    def run(self, seconds: Callable[[Any], float]) -> tuple[Floats, Floats]:
        """Start and end of each task."""
        lasting_s = np.array([seconds(slot) for slot in self.slots])
        return self.wiring.run(lasting_s[self.slot_of])


@cached(LRUCache(_REMEMBERED, lambda tasks: tasks.wiring.num_tasks))
def tasks_of(structure: IterationStructure) -> IterationTasks:
    """The tasks of all iterations of a structure."""
    pattern, _ = iteration_layout(structure)
    streams = _numbered(pattern.streams)
    kinds = _numbered(pattern.kinds)
    stages = range(structure.num_stages)
    return IterationTasks(
        wiring=pattern.wiring,
        slots=pattern.slots,  # type: ignore[arg-type]  # those of an iteration
        slot_of=np.array(pattern.slot_of, np.int32),
        kinds=tuple(kinds),
        kind_of=np.array([kinds[kind] for kind in pattern.kinds], np.int32),
        own=np.array([streams[stage_stream(stage)] for stage in stages], np.int32),
        others=_filled([_others(streams, stage, structure.num_stages) for stage in stages]),
    )


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """The different names by their first place, as `Wiring` numbers streams."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _others(streams: dict[str, int], stage: int, num_stages: int) -> list[list[int]]:
    """Streams of each part for which a stage may wait; the ends share the embedding."""
    ends = [EMBEDDING_STREAM] if stage in (0, num_stages - 1) else []
    between = [
        stream
        for stream in streams
        if stream.startswith(("link ", "wrap "))
        and str(stage) in stream.partition(" ")[2].split("->")
    ]
    parts = [*between, *ends], [data_stream(stage)], [MODEL_STREAM]
    return [[streams[name] for name in part if name in streams] for part in parts]


def _filled(stages: list[list[list[int]]]) -> Ints:
    """Lists of different lengths as an array, -1 where one is shorter."""
    longest = max(len(part) for parts in stages for part in parts)
    rows = [[part + [-1] * (longest - len(part)) for part in parts] for parts in stages]
    return np.array(rows, np.int32)
