"""The turns of backward passes that add their gradients to a sum on the host."""

from __future__ import annotations

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.iteration.plan import LAST_TURN, MIDDLE_TURN
from simtrain.schedules import KINDS, Schedule


def microbatch_turns(schedule: Schedule, *, has_turns: bool) -> Ints:
    """Return [actions], the turn of each pass (`Plan.passes_in_turn`); 0 without turns.

    The passes of a virtual stage that end the gradients of a microbatch, which are whole backward
    passes or weight gradients, take turns: the first one has turn 0, the last one the last turn.
    """
    turns = np.zeros(len(schedule.kind), np.int32)
    if not has_turns:
        return turns
    ends = [KINDS.index(kind) for kind in ("B", "W")]
    backward = np.flatnonzero(np.isin(schedule.kind, ends))
    turns[backward] = MIDDLE_TURN
    turns[schedule.last_backwards] = LAST_TURN
    _, firsts = np.unique(schedule.virtual_stage[backward], return_index=True)
    turns[backward[firsts]] = 0
    return turns
