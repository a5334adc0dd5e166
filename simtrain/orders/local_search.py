"""Improve an order by moving single actions: late acceptance hill climbing (Burke and Bykov 2017).

A move takes an action of a rank to an earlier place of its order. Most moves fill an idle moment:
the engine's timeline says where a rank waits, and which later action could have run. A changed
order is accepted if it is faster than the present one or than the one some steps ago. Moves that no
rank can run, or that need too much memory, are rejected. The same seed gives the same order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simtrain.schedules import Action, Schedule

_HISTORY = 24
"""Steps back to the time with which a changed order is compared."""
_FARTHEST = 16
"""Most places that an action moves."""
_SHARE_OF_IDLE = 0.8
"""Share of the moves that fill an idle moment."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedOrder:
    """An order and its simulated iteration.

    Args:
        schedule: the order.
        iteration_time_s: time of the iteration.
        peak_bytes: peak of the fullest stage.
        idle_s: [actions], how long each action's rank was idle before it.
    """

    schedule: Schedule
    iteration_time_s: float
    peak_bytes: int
    idle_s: np.ndarray


Evaluate = Callable[[Schedule], SimulatedOrder | None]


def climb(
    best: SimulatedOrder,
    evaluate: Evaluate,
    tries: int,
    rng: random.Random,
    on_try: Callable[[int], None] = lambda done: None,
) -> SimulatedOrder:
    """Try moves, starting with an order; return the fastest order.

    Args:
        best: the first order.
        evaluate: simulates an order; None if it cannot run or does not fit.
        tries: number of moves.
        rng: decides all choices.
        on_try: called after each move with their number.
    """
    now, history = best, [best.iteration_time_s] * _HISTORY
    for number in range(tries):
        changed = _moved(now, rng)
        candidate = evaluate(changed) if changed is not None else None
        place = number % _HISTORY
        if candidate and candidate.iteration_time_s <= max(now.iteration_time_s, history[place]):
            now = candidate
        history[place] = now.iteration_time_s
        if now.iteration_time_s < best.iteration_time_s:
            best = now
        on_try(number + 1)
    return best


def _moved(evaluated: SimulatedOrder, rng: random.Random) -> Schedule | None:
    """Return the order with an action at an earlier place, or None if the drawn move is illegal."""
    schedule, starts = evaluated.schedule, evaluated.schedule.rank_starts
    if rng.random() < _SHARE_OF_IDLE and (total := evaluated.idle_s.sum()) > 0:
        sums = np.cumsum(evaluated.idle_s)
        place = int(np.searchsorted(sums, rng.random() * total))
    else:
        place = rng.randrange(len(schedule.kind))
    end = int(starts[np.searchsorted(starts, place, side="right")])
    source = place + 1 + rng.randrange(_FARTHEST)
    if source >= end:
        return None
    moving = schedule.action(source)
    if any(_needs(moving, schedule.action(other)) for other in range(place, source)):
        return None
    columns = {}
    for name in ("virtual_stage", "kind", "microbatch"):
        column = getattr(schedule, name).copy()
        column[place : source + 1] = np.roll(column[place : source + 1], 1)
        columns[name] = column
    return replace(schedule, **columns)


def _needs(action: Action, other: Action) -> bool:
    """Whether an action reads a result of another one of the same rank."""
    if action.microbatch != other.microbatch:
        return False
    stage, before = action.virtual_stage, other.virtual_stage
    match action.kind, other.kind:
        case "W", "I":
            return stage == before
        case "F", "F":
            return stage == before + 1
        case (("B" | "I"), "F"):
            return stage == before
        case (("B" | "I"), ("B" | "I")):
            return stage == before - 1
    return False
