"""Activations of each stage, action by action: replays the schedule.

A stage runs its actions one after another, so their order determines its memory. The timeline only
adds the times. Merged actions run together: the tensors of both are alive.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from simtrain.iteration.memory.exchanges import memory_with_exchanges, times_exchanges
from simtrain.iteration.memory.working import PassMemory, merged_memory, pass_memory
from simtrain.iteration.pass_order import PassOrder, actions_deferring
from simtrain.iteration.plan import PassKey, Plan
from simtrain.schedules import KINDS

Bytes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryReplay:
    """Activations during each action, in the order of the schedule (stage by stage).

    Args:
        pass_order: order of each stage's actions, and their passes.
        passes: memory of the passes, by the keys of `Plan.passes`.
        merged: memory of merged passes, by the keys of both.
        running_bytes: [actions], saved tensors during an action; a forward pass includes its own.
        extra_bytes: [actions], memory above `running_bytes` at the peak of the action, or of the
            merged actions.
        after_bytes: [actions], saved tensors after the action.
        deferring: [actions], whether each leaves out the output layer's weight gradient, and memory
            of these passes; without such passes, empty.
    """

    pass_order: PassOrder
    passes: Mapping[PassKey, PassMemory]
    merged: Mapping[tuple[PassKey, PassKey], PassMemory]
    running_bytes: Bytes
    extra_bytes: Bytes
    after_bytes: Bytes
    deferring: tuple[NDArray[np.bool_], Mapping[PassKey, PassMemory]] = (
        np.zeros(0, np.bool_),
        MappingProxyType({}),
    )

    @classmethod
    def of(cls, plan: Plan) -> MemoryReplay:
        """Replay the schedule of a plan and add up the tensors that its passes save and free."""
        order, most = plan.pass_order, 0
        memory_of = memory_with_exchanges if times_exchanges(plan) else pass_memory
        passes = {key: memory_of(pass_) for key, pass_ in plan.passes.items()}
        # Both arrays have the axes of `_shape` and a value for each kind of pass:
        # `change` is the growth of the saved tensors, `beyond` the memory above them at the peak.
        change, beyond = np.zeros((2, *_shape(order)), object)
        for (chunk, kind, saves_all, part), memory in passes.items():
            place = chunk, int(saves_all), part, KINDS.index(kind)
            output = _output_bytes(plan, chunk, part)
            # I leaves the tensors that W reads, and passes of slices what other slices read.
            left = memory.remaining_bytes - memory.saved_bytes
            changes = {
                "F": memory.remaining_bytes + output,
                "B": left - output,
                "I": left - output,
                "W": left,
            }
            change[place], beyond[place] = changes[kind], memory.extra_bytes
            most = max(most, memory.saved_bytes + output + memory.extra_bytes)
        # Sums above 64 bits use Python integers, which are exact and slow.
        if most * len(order.actions.kind) < np.iinfo(np.int64).max:
            change, beyond = change.astype(np.int64), beyond.astype(np.int64)
        places, is_forward = _places(order)
        growth: Bytes = np.subtract(change.ravel()[places], _turning_bytes(plan))
        beyond_bytes: Bytes = beyond.ravel()[places]
        defers = actions_deferring(order.actions, plan.num_deferred)
        deferring = {key: pass_memory(pass_) for key, pass_ in plan.passes_deferring.items()}
        for number in np.flatnonzero(defers).tolist():
            memory = deferring[_key_at(order, number)]
            beyond_bytes[number] = memory.extra_bytes
            growth[number] += memory.remaining_bytes
            # All are held until the stage's last action ends.
            growth[_last_of_rank(order, number)] -= memory.remaining_bytes
        # Each stage ends with 0 bytes, so one cumulative sum covers all stages.
        after = np.cumsum(growth)
        running = after - np.where(is_forward, 0, growth)
        merged = {keys: merged_memory(pair) for keys, pair in plan.merged_passes.items()}
        replay = cls(order, passes, merged, running, beyond_bytes, after, (defers, deferring))
        if merged:
            replay._join_merged()
        return replay

    def _join_merged(self) -> None:
        """Set the memory during merged actions, in which the tensors of both passes are alive."""
        second = np.flatnonzero(self.pass_order.actions.follows_merged)
        places, _ = _places(self.pass_order)
        pairs = places[second - 1] * math.prod(_shape(self.pass_order)) + places[second]
        _, examples, number = np.unique(pairs, return_index=True, return_inverse=True)
        more, extra = [], []
        for place in second[examples].tolist():
            memory, keys = self.memory(place), map(self._key, (place - 1, place))
            more.append(memory.saved_bytes - sum(self.passes[key].saved_bytes for key in keys))
            extra.append(memory.extra_bytes)
        for action in (second - 1, second):
            self.running_bytes[action] = self.after_bytes[second - 1] + np.array(more)[number]
            self.extra_bytes[action] = np.array(extra)[number]

    @property
    def dynamic_bytes(self) -> Bytes:
        """[actions], all activations and working tensors at the peak of each action."""
        return self.running_bytes + self.extra_bytes

    def fullest_actions(self) -> list[int]:
        """Return the place of the first action with the highest peak, for each stage."""
        starts = self.pass_order.actions.rank_starts
        stages = np.split(self.dynamic_bytes, starts[1:-1])
        return [int(start + stage.argmax()) for start, stage in zip(starts, stages, strict=False)]

    def memory(self, place: int) -> PassMemory:
        """Return the memory of the pass or the merged passes that an action runs."""
        schedule = self.pass_order.actions
        if schedule.follows_merged[place]:
            return self.merged[self._key(place - 1), self._key(place)]
        if schedule.merges is not None and schedule.merges[place]:
            return self.merged[self._key(place), self._key(place + 1)]
        defers, memories = self.deferring
        passes = memories if memories and defers[place] else self.passes
        return passes[self._key(place)]

    def _key(self, place: int) -> PassKey:
        return _key_at(self.pass_order, place)


def _key_at(order: PassOrder, place: int) -> PassKey:
    """Return the key of the pass that an action runs."""
    shape, (places, _) = _shape(order), _places(order)
    chunk, saves_all, part, kind = np.unravel_index(places[place], shape)
    return int(chunk), KINDS[kind], bool(saves_all), int(part)


def _last_of_rank(order: PassOrder, place: int) -> int:
    """Return the place of the last action of an action's rank."""
    starts = order.actions.rank_starts
    return int(starts[np.searchsorted(starts, place, side="right")]) - 1


def _output_bytes(plan: Plan, chunk: int, part: int) -> int:
    """Return the bytes of a chunk's output if it stays allocated: 2sbh, or this rank's part of it.

    `part` is the slice of the sequences.

    Without `deallocate_outputs` it stays until the backward pass (paper, Appendix B).
    """
    last = plan.order.placement.num_virtual_stages - 1
    is_sent = chunk in plan.model_chunks.numbers[:last]
    if plan.scenario.memory.deallocate_outputs or plan.mesh.pp == 1 or not is_sent:
        return 0
    states = plan.contents.sent_states[plan.model_chunks.numbers.index(chunk)]
    return states * plan.slices[part].local_bytes


def _turning_bytes(plan: Plan) -> Bytes | int:
    """Return [actions], growth by outputs that are inputs of the rank's next chunk, or 0 without.

    The next chunk saves them, so they do not stay twice.
    """
    placement = plan.order.placement
    steps = np.ones(placement.num_virtual_stages, np.int32)
    steps[: len(placement.steps)] = placement.steps
    if steps.all():
        return 0
    schedule, chunks = plan.schedule, np.array(plan.pass_order.chunks)
    outputs = np.array(
        [
            [_output_bytes(plan, chunk, part) for part in range(schedule.num_slices)]
            for chunk in range(chunks.max() + 1)
        ]
    )
    outputs = np.where(steps[:, None] == 0, outputs[chunks], 0)
    signs = np.array([{"F": 1, "B": -1, "I": -1, "W": 0}[kind] for kind in KINDS])
    growth: Bytes = signs[schedule.kind] * outputs[schedule.virtual_stage, schedule.slice_number]
    return growth


@functools.lru_cache(maxsize=512)
def _places(order: PassOrder) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return each action's flat index in `_shape`, and whether it is forward."""
    actions = order.actions
    kinds, chunks = actions.kind, np.array(order.chunks)[actions.virtual_stage]
    columns = chunks, order.saves_all, actions.slice_number, kinds
    places = np.ravel_multi_index(columns, _shape(order))
    return places, kinds == KINDS.index("F")


def _shape(order: PassOrder) -> tuple[int, int, int, int]:
    return max(order.chunks) + 1, 2, order.order.num_slices, len(KINDS)
