"""The turns of passes: variants of a pass that differ by what has run before.

Backward passes that add their gradients to a sum on the host take turns, and so do the passes of a
recorded pipeline.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.iteration.plan import LAST_TURN, MIDDLE_TURN, Plan
from simtrain.schedules import KINDS, Schedule
from simtrain.workload.recorded.pipeline import AFTER_BACKWARD, FIRST, LAST, RecordedPipeline

TurnRule: TypeAlias = Literal["none", "host", "recorded", "recorded_last"]
"""Which passes have turns: none, those that add gradients to a sum on the host, or all passes of a
recorded pipeline, whose last backward passes may differ too.
"""


def turn_rule(plan: Plan) -> TurnRule:
    """Return the rule of a plan."""
    if isinstance(plan.recorded, RecordedPipeline):
        return "recorded_last" if plan.recorded.reduces_last else "recorded"
    return "host" if plan.has_turns else "none"


def turns_of(schedule: Schedule, rule: TurnRule) -> Ints:
    """Return [actions], the turn of each pass (`Plan.passes_in_turn`); 0 without turns."""
    if rule in ("none", "host"):
        return microbatch_turns(schedule, has_turns=rule == "host")
    # Actions grouped by chunk, in the order in which the stage runs them.
    order = np.argsort(schedule.virtual_stage, kind="stable")
    is_forward = schedule.kind[order] == KINDS.index("F")
    turns = np.zeros(len(order), np.int32)
    turns[1:][~is_forward[:-1]] = AFTER_BACKWARD
    for of_kind in (is_forward, ~is_forward):
        places = np.flatnonzero(of_kind)
        _, firsts = np.unique(schedule.virtual_stage[order][places], return_index=True)
        turns[places[firsts]] = FIRST
    result = np.empty_like(turns)
    result[order] = turns
    if rule == "recorded_last":
        result[schedule.last_backwards] = LAST
    return result


def microbatch_turns(schedule: Schedule, *, has_turns: bool) -> Ints:
    """Return [actions], the turns of gradients on the host; 0 without them.

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
