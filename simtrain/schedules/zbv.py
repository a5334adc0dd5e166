"""ZB-V (Qi et al. 2024): two chunks per stage, placed as a V, with 1F1B's memory on every stage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from simtrain.schedules.actions import Action, Kind
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth

_Pass = tuple[Kind, int]
"""The kind and the chunk of a pass."""


class Zbv(ScheduleFamily):
    """PyTorch's `ScheduleZBVZeroBubble`. Without bubble if F, I and W take equally long."""

    name = "zbv"
    fewest_chunks = most_chunks = 2
    validates_steps = True
    torch_names = ("zbvzerobubble",)

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return ranks 0 to p - 1, then p - 1 to 0."""
        return back_and_forth(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes.

        Fewer than 2p - 1 microbatches run in the order of 2p - 1 without the others.
        """
        placement, ranks = self.placement(p, m), []
        for rank, stages in enumerate(placement.virtual_stages):
            numbers = {(kind, chunk): itertools.count() for kind in "FIW" for chunk in range(2)}
            passes = _passes(rank, p, max(2 * p - 1, n))
            actions = [
                Action(stages[chunk], kind, next(numbers[kind, chunk])) for kind, chunk in passes
            ]
            ranks.append([action for action in actions if action.microbatch < n])
        return Schedule.of(self.name, placement, n, ranks)


def _passes(rank: int, p: int, n: int) -> Iterator[_Pass]:
    """Yield the kind and the chunk of each pass of a rank; each one runs the next microbatch."""
    later, num_started = p - rank, 2 * p - rank - 1
    forwards: list[_Pass] = [("F", 0), ("F", 1)]
    inputs: list[_Pass] = [("I", 0), ("I", 1)]
    weights: list[_Pass] = [("W", 0), ("W", 1)]
    backwards = [[inputs[chunk], weights[chunk]] for chunk in range(2)]
    yield from forwards[:1] * (2 * later - 1)
    yield from forwards[::-1] * rank
    yield from [forwards[1], *backwards[1]] * later
    steady = [*backwards[0], forwards[1], *backwards[1]]
    yield from [forwards[0], *steady] * (n - num_started)
    # The second chunk still has the forwards that the first one is ahead.
    yield from steady * (later - 1)
    yield from inputs * rank
    yield from backwards[0] * later
    yield from weights[1:] * rank
    yield from weights[:1] * rank
