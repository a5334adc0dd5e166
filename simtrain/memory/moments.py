"""The moments at which a stage can be at its fullest, whatever its tensors' sizes.

A stage's order of actions settles how many forward passes of which chunk it holds while it runs
what; many of its actions are alike in that. Scenarios that differ in sizes only share them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simtrain.memory.working import ActionMemory
from simtrain.programs.iteration_shape import IterationShape
from simtrain.schedules import Action

Load = tuple[int, bool]
"""A chunk by its number in the shape, and whether its forward pass keeps everything."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of the passes of a chunk: what a forward pass leaves, and both passes' memory."""

    outstanding_bytes: int
    forward: ActionMemory
    backward: ActionMemory


@dataclass(frozen=True, slots=True)
class Peak:
    """The fullest moment of a stage: the first action at which it comes.

    `activations_bytes` are outstanding, the action's own included; it holds `memory.beyond_bytes`
    more.
    """

    action: Action
    load: Load
    activations_bytes: int
    memory: ActionMemory

    @property
    def dynamic_bytes(self) -> int:
        """All that comes and goes."""
        return self.activations_bytes + self.memory.beyond_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The different moments of all stages, stage after stage in the order of their first actions.

    `outstanding[i, l]` counts the forward passes of `loads[l]` that are held in moment i,
    `running[i]` is twice the place of the load that acts, plus one for a backward pass.
    `starts[s]` is the first moment of stage s.
    """

    loads: tuple[Load, ...]
    actions: tuple[Action, ...]
    outstanding: Any
    running: Any
    starts: Any

    def dynamic_bytes(self, held: Mapping[Load, Held]) -> Any:
        """Bytes of all that comes and goes, at each moment."""
        import numpy as np

        sizes = [held[load].outstanding_bytes for load in self.loads]
        beyond = [
            memory.beyond_bytes
            for load in self.loads
            for memory in (held[load].forward, held[load].backward)
        ]
        return self.outstanding @ np.array(sizes) + np.array(beyond)[self.running]

    def stage_bytes(self, held: Mapping[Load, Held]) -> list[int]:
        """The most that comes and goes on each stage."""
        import numpy as np

        fullest: list[int] = np.maximum.reduceat(self.dynamic_bytes(held), self.starts).tolist()
        return fullest

    def peaks(self, held: Mapping[Load, Held]) -> list[Peak]:
        """The first of the fullest moments of each stage."""
        import numpy as np

        parts = np.split(self.dynamic_bytes(held), self.starts[1:])
        firsts = map(int, self.starts)
        return [
            self._peak(first + int(part.argmax()), held)
            for first, part in zip(firsts, parts, strict=True)
        ]

    def _peak(self, place: int, held: Mapping[Load, Held]) -> Peak:
        number, backward = divmod(int(self.running[place]), 2)
        load = self.loads[number]
        memory = held[load].backward if backward else held[load].forward
        activations = sum(
            int(count) * held[other].outstanding_bytes
            for count, other in zip(self.outstanding[place], self.loads, strict=True)
        )
        return Peak(self.actions[place], load, activations, memory)


@functools.lru_cache(maxsize=512)
def moments_of(shape: IterationShape) -> Moments:
    """The moments of the stages of an iteration."""
    import numpy as np

    kept = shape.kept()
    loads = tuple(
        (chunk, keeps)
        for chunk in sorted(set(shape.chunks))
        for keeps in ((False, True) if kept else (False,))
    )
    found = [_moments_of_stage(shape, kept, loads, stage) for stage in range(shape.num_stages)]
    rows = [row for stage in found for row in stage]
    return Moments(
        loads,
        tuple(action for stage in found for action in stage.values()),
        np.array([counts for counts, _ in rows], np.int64),
        np.array([running for _, running in rows], np.int64),
        np.cumsum([0, *map(len, found[:-1])]),
    )


_Row = tuple[tuple[int, ...], int]


def _moments_of_stage(
    shape: IterationShape,
    kept: frozenset[tuple[int, int]],
    loads: tuple[Load, ...],
    stage: int,
) -> dict[_Row, Action]:
    """The different moments of a stage, each with its first action."""
    places = {load: place for place, load in enumerate(loads)}
    outstanding = [0] * len(loads)
    first: dict[_Row, Action] = {}
    for action in shape.schedule.ranks[stage]:
        keeps = (action.virtual_stage, action.microbatch) in kept
        place = places[shape.chunks[action.virtual_stage], keeps]
        if action.kind == "F":
            outstanding[place] += 1
        running = 2 * place + int(action.kind == "B")
        first.setdefault((tuple(outstanding), running), action)
        if action.kind == "B":
            outstanding[place] -= 1
    return first
