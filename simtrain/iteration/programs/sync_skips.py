"""Passes of ZeRO stages 2 and 3 that skip communication with other replicas.

Without a pipeline, only the last microbatch's backward pass may reduce gradients. In a pipeline
with PyTorch's fully_shard, a pass needs no gather if an earlier pass of its chunk has left the
parameters
unsharded: torch/distributed/pipelining/stage.py does not reshard after backward passes until
gradients are reduced; `reshard_after_forward` decides about forward passes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.engine.compiled import Ints
from simtrain.iteration.plan import LAST_TURN, MIDDLE_TURN, Plan
from simtrain.schedules import KINDS, Schedule

SyncSkipRule: TypeAlias = Literal["none", "all", "before_last", "after_first", "after_backward"]
"""Passes that skip communication: none; all, because whole chunks are gathered before them;
backward passes before the last microbatch; all passes of a chunk after its first; or passes that
follow a backward pass of their chunk."""


def sync_skip_rule(plan: Plan) -> SyncSkipRule:
    """Return the rule of a plan."""
    if not plan.passes_skipping_sync:
        return "none"
    if plan.mesh.pp == 1:
        return "before_last"
    if plan.most_gathered:
        return "all"
    return "after_backward" if plan.scenario.memory.reshard_after_forward else "after_first"


def actions_skipping_sync(schedule: Schedule, rule: SyncSkipRule) -> NDArray[np.bool_]:
    """Return [actions], whether each action runs a pass that skips communication."""
    is_backward: NDArray[np.bool_] = schedule.kind != KINDS.index("F")
    if rule in ("none", "all"):
        return np.full_like(is_backward, rule == "all")
    if rule == "before_last":
        is_backward[schedule.last_backwards] = False
        return is_backward
    # Actions grouped by chunk, in the order in which the stage runs them.
    order = np.argsort(schedule.virtual_stage, kind="stable")
    chunk, follows_backward = schedule.virtual_stage[order], is_backward[order][:-1]
    quiet = np.zeros_like(is_backward)
    quiet[order[1:]] = (chunk[1:] == chunk[:-1]) & (follows_backward | (rule == "after_first"))
    return quiet


# ------------------------------------------------------------------------------
# The turns of backward passes that add their gradients to a sum on the host.


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
