"""What one chunk of layers does for one microbatch, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.scenario import RecomputePolicy
from simtrain.workload.batch import get_batch
from simtrain.workload.embedding import embedding_backward, embedding_forward
from simtrain.workload.head import head_backward, head_forward
from simtrain.workload.issue import IssueOrder
from simtrain.workload.recompute import units
from simtrain.workload.shape import LayerShape
from simtrain.workload.zero import OTHERS, DividedStates, Replicas


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive layers that a stage runs as one; ends of the model carry more than layers.

    `reads_batch` says that its forward pass begins with getting the microbatch.
    """

    num_layers: int
    has_embedding: bool = False
    has_head: bool = False
    reads_batch: bool = False

    def forward(
        self,
        shape: LayerShape,
        recompute: RecomputePolicy,
        *,
        hide: bool,
        divided: DividedStates | None = None,
    ) -> IssueOrder:
        """The forward pass of one microbatch; `divided` are the states of ZeRO stages 2 and 3."""
        order = _issue_order(hide, divided)
        replicas = Replicas.forward(order, divided, range(self.num_layers))
        if self.reads_batch:
            get_batch(order, shape)
        replicas.need(OTHERS)
        if self.has_embedding:
            embedding_forward(order, shape)
        for unit in units(recompute, self.num_layers):
            unit.forward(order, shape, replicas)
        if self.has_head:
            head_forward(order, shape)
        return order

    def backward(
        self,
        shape: LayerShape,
        recompute: RecomputePolicy,
        *,
        hide: bool,
        divided: DividedStates | None = None,
    ) -> IssueOrder:
        """The backward pass of one microbatch; `divided` are the states of ZeRO stages 2 and 3."""
        order = _issue_order(hide, divided)
        last_to_first = units(recompute, self.num_layers)[::-1]
        needed = (layer for unit in last_to_first for layer in unit.layers_of_backward)
        replicas = Replicas.backward(order, divided, needed)
        replicas.need(OTHERS)
        if self.has_head:
            head_backward(order, shape)
        for unit in last_to_first:
            unit.backward(order, shape, replicas)
        if self.has_embedding:
            embedding_backward(order, shape)
        replicas.reduce(OTHERS)
        replicas.finish()
        return order


def _issue_order(hide: bool, divided: DividedStates | None) -> IssueOrder:
    return IssueOrder(hide=hide, hide_data=divided is not None and divided.hide)
