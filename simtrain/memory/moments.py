"""The moments at which a stage can be at its fullest, whatever its tensors' sizes.

A stage's order of actions settles how many forward passes of which chunk it holds while it runs
what; many of its actions are alike in that. Scenarios that differ in sizes only share them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simtrain.memory.chunk import ChunkMemory, Load
from simtrain.memory.working import PassMemory
from simtrain.plan import PipelineOrder
from simtrain.schedules import Action, Kind

_KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")


@dataclass(frozen=True, slots=True)
class Peak:
    """The fullest moment of a stage: the first action at which it comes.

    `activations_bytes` are outstanding, the action's own included; it holds `memory.beyond_bytes`
    more.
    """

    action: Action
    activations_bytes: int
    memory: PassMemory


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The different moments of all stages, stage after stage in the order of their first actions.

    `held[i, l]` counts the forward passes of `loads[l]` that are held in moment i, and after all
    loads those whose weight gradients wait. `running[i]` is four times the place of the load that
    acts, plus the place of the kind of its pass. `starts[s]` is the first moment of stage s.
    """

    loads: tuple[Load, ...]
    actions: tuple[Action, ...]
    held: Any
    running: Any
    starts: Any

    def stage_bytes(self, memories: Mapping[Load, ChunkMemory]) -> list[int]:
        """The most that comes and goes on each stage."""
        import numpy as np

        fullest: list[int] = np.maximum.reduceat(
            self._dynamic_bytes(memories), self.starts
        ).tolist()
        return fullest

    def peaks(self, memories: Mapping[Load, ChunkMemory]) -> list[Peak]:
        """The first of the fullest moments of each stage."""
        import numpy as np

        parts = np.split(self._dynamic_bytes(memories), self.starts[1:])
        firsts = map(int, self.starts)
        return [
            self._peak(first + int(part.argmax()), memories)
            for first, part in zip(firsts, parts, strict=True)
        ]

    def _dynamic_bytes(self, memories: Mapping[Load, ChunkMemory]) -> Any:
        """Bytes of all that comes and goes, at each moment."""
        import numpy as np

        beyond = [
            memories[load].passes[kind].beyond_bytes if kind in memories[load].passes else 0
            for load in self.loads
            for kind in _KINDS
        ]
        return self.held @ np.array(self._sizes(memories)) + np.array(beyond)[self.running]

    def _sizes(self, memories: Mapping[Load, ChunkMemory]) -> list[int]:
        outstanding = [memories[load].outstanding_bytes for load in self.loads]
        return outstanding + [memories[load].deferred_bytes for load in self.loads]

    def _peak(self, place: int, memories: Mapping[Load, ChunkMemory]) -> Peak:
        number, kind = divmod(int(self.running[place]), len(_KINDS))
        memory = memories[self.loads[number]].passes[_KINDS[kind]]
        counts = map(int, self.held[place])
        activations = sum(
            count * size for count, size in zip(counts, self._sizes(memories), strict=True)
        )
        return Peak(self.actions[place], activations, memory)


@functools.lru_cache(maxsize=512)
def moments_of(order: PipelineOrder) -> Moments:
    """The moments of the stages of an iteration."""
    import numpy as np

    kept = order.kept
    loads = tuple(
        (chunk, keeps)
        for chunk in sorted(set(order.chunks))
        for keeps in ((False, True) if kept else (False,))
    )
    stages = range(order.num_stages)
    found = [_moments_of_stage(order, kept, loads, stage) for stage in stages]
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
    order: PipelineOrder,
    kept: frozenset[tuple[int, int]],
    loads: tuple[Load, ...],
    stage: int,
) -> dict[_Row, Action]:
    """The different moments of a stage, each with its first action."""
    places = {load: place for place, load in enumerate(loads)}
    held = [0] * (2 * len(loads))
    first: dict[_Row, Action] = {}
    for action in order.schedule.ranks[stage]:
        keeps = (action.virtual_stage, action.microbatch) in kept
        place = places[order.chunks[action.virtual_stage], keeps]
        deferred = place + len(loads)
        if action.kind == "F":
            held[place] += 1
        running = len(_KINDS) * place + _KINDS.index(action.kind)
        first.setdefault((tuple(held), running), action)
        if action.kind in ("B", "I"):
            held[place] -= 1
        if action.kind == "I":
            held[deferred] += 1
        elif action.kind == "W":
            held[deferred] -= 1
    return first
