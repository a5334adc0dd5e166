"""What one chunk of layers does for one microbatch, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.batch import get_batch
from simtrain.workload.embedding import embedding_backward, embedding_forward
from simtrain.workload.head import head_backward, head_forward
from simtrain.workload.issue import IssueOrder
from simtrain.workload.layer import Recompute, layer_backward, layer_forward
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

    def forward(self, shape: LayerShape, recompute: Recompute, *, hide: bool) -> IssueOrder:
        """The forward pass of one microbatch."""
        order = IssueOrder(hide=hide)
        if self.reads_batch:
            get_batch(order, shape)
        if self.has_embedding:
            embedding_forward(order, shape)
        for _ in range(self.num_layers):
            layer_forward(order, shape, recompute)
        if self.has_head:
            head_forward(order, shape)
        return order

    def backward(self, shape: LayerShape, recompute: Recompute, *, hide: bool) -> IssueOrder:
        """The backward pass of one microbatch."""
        order = IssueOrder(hide=hide)
        if self.has_head:
            head_backward(order, shape)
        for _ in range(self.num_layers):
            layer_backward(order, shape, recompute)
        if self.has_embedding:
            embedding_backward(order, shape)
        return order
