"""Backward passes that leave the output layer's weight gradient for the end of the iteration.

Megatron-Core's --defer-embedding-wgrad-compute: the last stage's first backward passes append the
gradient of their logits to a buffer (tensor_parallel/layers.py, `grad_output_buffer`), up to
--wgrad-deferral-limit of them, and `finish_embedding_wgrad_compute` runs the products after the
last backward pass (pipeline_parallel/schedules.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simtrain.schedules import KINDS, Schedule


def actions_deferring(schedule: Schedule, number: int) -> NDArray[np.bool_]:
    """Return [actions], whether each is one of the first `number` backward passes of the loss."""
    last = schedule.virtual_stage == len(schedule.placement.ranks) - 1
    is_backward = last & (schedule.kind == KINDS.index("B"))
    defers: NDArray[np.bool_] = is_backward & (np.cumsum(is_backward) <= number)
    return defers
