"""A moving window over a rank's forward passes: some in each window keep all their activations.

Source: paper, Appendix C; Megatron-LM's num_microbatches_with_partial_activation_checkpoints
(core/pipeline_parallel/schedules.py), which counts the forward passes of a rank, chunk by chunk
where they are interleaved, and cuts them into windows of `max_outstanding_backprops`. Interleaved
chunks go backward in another order than forward, so that for a while a rank can have more of the
kept ones outstanding than a window has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simtrain.schedules.actions import KINDS
from simtrain.schedules.schedule import Ints, Schedule

_OUTSTANDING = np.array([{"F": 1, "B": -1, "I": 0, "W": -1}[kind] for kind in KINDS])


def most_outstanding(schedule: Schedule) -> Ints:
    """The most forward passes of each rank that still wait for their backward pass at any time."""
    outstanding = _counted(schedule, _OUTSTANDING[schedule.kind])
    most: Ints = np.maximum.reduceat(outstanding, schedule.rank_starts[:-1])
    return most


def kept_actions(schedule: Schedule, num_kept: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each action belongs to a forward pass that is among the first of its window.

    `num_kept` says how many of each rank's windows are.
    """
    kept = np.zeros((schedule.num_virtual_stages, schedule.num_microbatches), np.bool_)
    if any(num_kept):
        is_forward = schedule.kind == KINDS.index("F")
        number = _counted(schedule, is_forward) - 1
        window = most_outstanding(schedule)[schedule.rank]
        is_kept = is_forward & (number % window < np.array(num_kept)[schedule.rank])
        kept[schedule.virtual_stage[is_kept], schedule.microbatch[is_kept]] = True
    keeps: NDArray[np.bool_] = kept[schedule.virtual_stage, schedule.microbatch]
    return keeps


def _counted(schedule: Schedule, changes: NDArray[np.int64 | np.bool_]) -> Ints:
    """The sum of the changes of a rank up to each of its actions."""
    sums = np.concatenate([[0], np.cumsum(changes)])
    counted: Ints = sums[1:] - sums[schedule.rank_starts[schedule.rank]]
    return counted
