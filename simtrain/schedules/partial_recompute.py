"""Microbatch-level recompute: in each window of forward passes, the first few save everything.

Source: paper, Appendix C; Megatron-LM's num_microbatches_with_partial_activation_checkpoints
(core/pipeline_parallel/schedules.py). Megatron counts a rank's forward passes over all its chunks
and cuts them into windows of `max_outstanding_backprops`. Interleaved chunks run backward in a
different order than forward, so a rank can briefly hold more fully saved passes than one window
has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simtrain.schedules.actions import KINDS
from simtrain.schedules.schedule import Ints, Schedule

_OUTSTANDING = np.array([{"F": 1, "B": -1, "I": 0, "W": -1}[kind] for kind in KINDS])


def most_outstanding(schedule: Schedule) -> Ints:
    """Largest number of forward passes waiting for their backward pass, shape [rank]."""
    outstanding = _counted(schedule, _OUTSTANDING[schedule.kind])
    most: Ints = np.maximum.reduceat(outstanding, schedule.rank_starts[:-1])
    return most


def save_all_actions(schedule: Schedule, num_saving_all: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each action belongs to a microbatch that saves all its activations, shape [action].

    Args:
        schedule: the schedule.
        num_saving_all: for each rank, the number of forward passes per window that save everything.
    """
    if not any(num_saving_all):
        return np.zeros(len(schedule.kind), np.bool_)
    saving = np.zeros((schedule.num_virtual_stages, schedule.num_microbatches), np.bool_)
    is_forward = schedule.kind == KINDS.index("F")
    number = _counted(schedule, is_forward) - 1
    window = most_outstanding(schedule)[schedule.rank]
    is_saving = is_forward & (number % window < np.array(num_saving_all)[schedule.rank])
    saving[schedule.virtual_stage[is_saving], schedule.microbatch[is_saving]] = True
    saves_all: NDArray[np.bool_] = saving[schedule.virtual_stage, schedule.microbatch]
    return saves_all


def _counted(schedule: Schedule, changes: NDArray[np.int64 | np.bool_]) -> Ints:
    """Running sum of `changes` within each rank, including the action itself."""
    sums = np.concatenate([[0], np.cumsum(changes)])
    counted: Ints = sums[1:] - sums[schedule.rank_starts[schedule.rank]]
    return counted
