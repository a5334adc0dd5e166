"""V-Half and V-Min (Qi et al. 2024): V-shaped schedules with a half and a third of 1F1B's memory.

A building block has the times of one microbatch's passes. It is repeated every 6 slots, in which
each rank runs two forwards, two input gradients and two weight gradients. `repeated_block` moves
passes of the warm-up and of the cool-down to earlier idle slots.
"""

from __future__ import annotations

from abc import abstractmethod

from simtrain.schedules.actions import Action, Kind
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.repeated_block import Block, repeated_block
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth

_PASSES: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0), ("W", 1), ("W", 0))
"""Kind and chunk of the rows of a repeated block."""


class _VShaped(ScheduleFamily):
    """Schedules that repeat a building block on a V-shaped placement."""

    fewest_chunks = most_chunks = 2
    validates_steps = True

    @abstractmethod
    def block(self, p: int) -> list[Block]:
        """Return for each rank the slots of the first microbatch's F0, F1, I1 and I0."""

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return ranks 0 to p - 1, then p - 1 to 0."""
        return back_and_forth(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        placement, ranks = back_and_forth(p, m), []
        orders = repeated_block(self.block(p), n)
        for stages, order in zip(placement.virtual_stages, orders, strict=True):
            passes = ((*_PASSES[row], microbatch) for row, microbatch in order)
            ranks.append([Action(stages[chunk], kind, number) for kind, chunk, number in passes])
        return Schedule.of(self.name, placement, n, ranks)


class VHalf(_VShaped):
    """V-Half: half of 1F1B's activations on every stage, with a bubble like that of 1F1B."""

    name = "v_half"

    def block(self, p: int) -> list[Block]:
        """Return steps of 2, 1, 2 and 1 slots between ranks, for F0, F1, I1 and I0."""
        # With an even p, the passes of two ranks would share a slot.
        turn = 3 * p - 1 + 3 * (p % 2 == 0)
        ranks = range(p)
        return [(2 * r, 3 * p - 2 - r, turn + 2 * r, turn + 3 * p - 1 - r) for r in ranks]


class VMin(_VShaped):
    """V-Min: a third of 1F1B's activations on every stage, with a longer bubble."""

    name = "v_min"

    def block(self, p: int) -> list[Block]:
        """Return steps of one slot between ranks."""
        turn = 2 * p + 2 * (p % 3 == 0)
        return [(r, 2 * p - 1 - r, turn + r, turn + 2 * p - 1 - r) for r in range(p)]
