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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive layers that a stage runs as one; ends of the model carry more than layers.

    `reads_batch` says that its forward pass begins with getting the microbatch.
    """

    num_layers: int
    has_embedding: bool = False
    has_head: bool = False
    reads_batch: bool = False

    def forward(self, shape: LayerShape, recompute: RecomputePolicy, *, hide: bool) -> IssueOrder:
        """The forward pass of one microbatch."""
        order = IssueOrder(hide=hide)
        if self.reads_batch:
            get_batch(order, shape)
        if self.has_embedding:
            embedding_forward(order, shape)
        for unit in units(recompute, self.num_layers):
            unit.forward(order, shape)
        if self.has_head:
            head_forward(order, shape)
        return order

    def backward(self, shape: LayerShape, recompute: RecomputePolicy, *, hide: bool) -> IssueOrder:
        """The backward pass of one microbatch."""
        order = IssueOrder(hide=hide)
        if self.has_head:
            head_backward(order, shape)
        for unit in reversed(units(recompute, self.num_layers)):
            unit.backward(order, shape)
        if self.has_embedding:
            embedding_backward(order, shape)
        return order
