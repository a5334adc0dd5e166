"""The order of a pipeline's actions, with the passes that they run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simtrain.schedules import KINDS, Order, Schedule, save_all_actions


@dataclass(frozen=True, slots=True)
class PassOrder:
    """The order of each stage's actions, and the passes that they run.

    Args:
        order: the order of the actions.
        chunks: [virtual stages], the number of each one's chunk among the different ones.
        num_saving_all: [stages], number of outstanding forward passes that save everything.
    """

    order: Order
    chunks: tuple[int, ...]
    num_saving_all: tuple[int, ...]

    @property
    def actions(self) -> Schedule:
        """The actions of each stage."""
        return self.order.actions

    @property
    def num_passes(self) -> NDArray[np.int64]:
        """[different chunks, kinds, 2, slices], the number of passes.

        Those of the third axis save what recompute leaves, or everything.
        """
        shape = max(self.chunks) + 1, len(KINDS), 2, self.order.num_slices
        counts = np.zeros(shape, np.int64)
        if not any(self.num_saving_all):
            np.add.at(counts[:, :, 0], np.array(self.chunks), self.order.num_actions)
            return counts
        actions, chunks = self.actions, np.array(self.chunks)
        saves_all = self.saves_all.astype(np.int64)
        columns = chunks[actions.virtual_stage], actions.kind, saves_all, actions.slice_number
        places = np.ravel_multi_index(columns, counts.shape)
        return np.bincount(places, minlength=counts.size).reshape(counts.shape)

    @property
    def saves_all(self) -> NDArray[np.bool_]:
        """[actions], whether each action's microbatch saves everything on its chunk."""
        return save_all_actions(self.actions, self.num_saving_all)


# ------------------------------------------------------------------------------
# Backward passes that leave the output layer's weight gradient for the end of the iteration.
#
# Megatron-Core's --defer-embedding-wgrad-compute: the last stage's first backward passes append
# the gradient of their logits to a buffer (tensor_parallel/layers.py, `grad_output_buffer`), up
# to --wgrad-deferral-limit of them, and `finish_embedding_wgrad_compute` runs the products after
# the last backward pass (pipeline_parallel/schedules.py).


def actions_deferring(schedule: Schedule, number: int) -> NDArray[np.bool_]:
    """Return [actions], whether each is one of the first `number` backward passes of the loss."""
    last = schedule.virtual_stage == len(schedule.placement.ranks) - 1
    is_backward = last & (schedule.kind == KINDS.index("B"))
    defers: NDArray[np.bool_] = is_backward & (np.cumsum(is_backward) <= number)
    return defers
