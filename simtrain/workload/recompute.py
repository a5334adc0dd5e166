"""Which layers of a chunk are run again in the backward pass, and what they keep until then.

Source: Megatron-LM's core/recompute.py and tensor_parallel/random.py (`CheckpointFunction`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from simtrain.scenario import RecomputePolicy
from simtrain.workload.issue import IssueOrder
from simtrain.workload.layer import layer_backward, layer_forward
from simtrain.workload.linear import collective
from simtrain.workload.ops import CollectiveKind, Elementwise, Phase
from simtrain.workload.shape import LayerShape
from simtrain.workload.zero import Replicas

KEEP_ALL = RecomputePolicy()
UNIT_INPUT_PART = "distributed unit input"


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive layers that keep their ops' tensors, or (`again`) only the input of the first.

    `first` is the number of its first layer in the chunk. `keep_scores` is off for selective
    recompute; `distribute` keeps 1/t of the input.
    """

    first: int
    num_layers: int
    again: bool = False
    keep_scores: bool = True
    distribute: bool = False

    def forward(self, order: IssueOrder, shape: LayerShape, replicas: Replicas) -> None:
        """Emit the forward pass of the unit's layers."""
        replicas.need(self.first)
        keeping = order.checkpointing(keep_input=not self.distribute)
        with keeping if self.again else nullcontext():
            for number in self.layers:
                replicas.need(number)
                with order.in_layer(number):
                    layer_forward(order, shape, keep_scores=self.keep_scores)
        if self.distribute:
            with order.in_layer(self.first, ends=False):
                _split_input(order, shape)

    def backward(self, order: IssueOrder, shape: LayerShape, replicas: Replicas) -> None:
        """Emit the backward pass; before it the forward pass, with its collectives, if `again`."""
        if self.distribute:
            with order.in_layer(self.first, ends=False):
                _gather_input(order, shape)
        if self.again:
            output_bytes = shape.local_tokens * shape.hidden * shape.element_bytes
            for number in self.layers:
                replicas.need(number)
                with order.in_layer(number, ends=False), order.recomputing(output_bytes):
                    layer_forward(order, shape, keep_scores=True)
        for number in reversed(self.layers):
            replicas.need(number)
            with order.in_layer(number):
                layer_backward(order, shape, scores_again=not self.keep_scores)
            replicas.reduce(number)

    @property
    def layers(self) -> range:
        """Numbers of its layers in the chunk."""
        return range(self.first, self.first + self.num_layers)

    @property
    def layers_of_backward(self) -> Sequence[int]:
        """Numbers of its layers in the order in which the backward pass first runs them."""
        return self.layers if self.again else self.layers[::-1]


def units(policy: RecomputePolicy, num_layers: int) -> tuple[Unit, ...]:
    """The units of a chunk of `num_layers` layers, first to last.

    `strategy` is none, selective or full: choosing among them (auto) has been done before.
    """
    assert policy.strategy != "auto", "a strategy is chosen before work is laid out"
    if policy.strategy != "full":
        keep_scores = policy.strategy == "none"
        return tuple(Unit(layer, 1, keep_scores=keep_scores) for layer in range(num_layers))
    if policy.method == "block":
        recomputed = min(policy.num_layers, num_layers)
        again = (
            Unit(layer, 1, again=True, distribute=policy.distribute) for layer in range(recomputed)
        )
        return (*again, *(Unit(layer, 1) for layer in range(recomputed, num_layers)))
    return tuple(
        Unit(
            first,
            min(policy.num_layers, num_layers - first),
            again=True,
            distribute=policy.distribute,
        )
        for first in range(0, num_layers, policy.num_layers)
    )


def repeated_units(policy: RecomputePolicy, num_layers: int, ends: int = 1) -> tuple[int, int]:
    """Layers of a unit, and how many units of a chunk do just what their neighbours do.

    All but `ends` at either end of its whole units: ops and tensors of a chunk are those of its
    ends, and of units one like the other. Where some layers are recomputed and others not, none is
    counted.
    """
    full = policy.strategy == "full"
    if full and policy.method == "block":
        return 1, 0
    unit = policy.num_layers if full else 1
    return unit, max(0, num_layers // unit - 2 * ends)


def _split_input(order: IssueOrder, shape: LayerShape) -> None:
    """Copy this rank's part of the unit's input, which is all that is kept of it."""
    part = shape.tokens * shape.hidden // shape.tensor
    num_bytes = part * shape.element_bytes
    kept = (shape.saved(UNIT_INPUT_PART, part),)
    order.compute(Elementwise("unit input split", num_bytes, num_bytes, Phase.FORWARD, saved=kept))


def _gather_input(order: IssueOrder, shape: LayerShape) -> None:
    """The extra all-gather of a unit's input (paper, Section 5)."""
    order.block(
        collective(
            shape,
            "unit input gather",
            CollectiveKind.ALL_GATHER,
            Phase.RECOMPUTE,
            extra=True,
            releases=(UNIT_INPUT_PART,),
        )
    )
