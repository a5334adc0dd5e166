"""Which passes of stages 2 and 3 of ZeRO exchange less with other replicas than their likes.

Without a pipeline, backward passes may leave their gradients to the last microbatch's. In a
pipeline of PyTorch's fully_shard, a pass finds parameters that an earlier pass of its chunk has
left whole. torch/distributed/pipelining/stage.py turns resharding after backward passes off until
gradients are reduced; `reshard_after_forward` says what forward passes do.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.plan import Plan
from simtrain.schedules import KINDS, Schedule

SyncSkipRule: TypeAlias = Literal["none", "before_last", "after_first", "after_backward"]
"""No passes; backward passes before the last microbatch's; all passes of a chunk after its first;
or all that follow a backward pass of their chunk."""


def sync_skip_rule(plan: Plan) -> SyncSkipRule:
    """Which passes of a plan are quiet."""
    if not plan.passes_skipping_sync:
        return "none"
    if plan.mesh.pp == 1:
        return "before_last"
    return "after_backward" if plan.scenario.memory.reshard_after_forward else "after_first"


def actions_skipping_sync(schedule: Schedule, rule: SyncSkipRule) -> NDArray[np.bool_]:
    """[actions], whether each action runs a quiet pass."""
    is_backward: NDArray[np.bool_] = schedule.kind == KINDS.index("B")
    if rule == "none":
        return np.zeros_like(is_backward)
    if rule == "before_last":
        return is_backward & (schedule.microbatch < schedule.num_microbatches - 1)
    # The actions of each chunk one after another, in the order in which its stage runs them.
    order = np.argsort(schedule.virtual_stage, kind="stable")
    chunk, follows_backward = schedule.virtual_stage[order], is_backward[order][:-1]
    quiet = np.zeros_like(is_backward)
    quiet[order[1:]] = (chunk[1:] == chunk[:-1]) & (follows_backward | (rule == "after_first"))
    return quiet
