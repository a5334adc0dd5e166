"""The part of a node's backward pass that remains if parameters are frozen (autograd's rules).

A frozen parameter has no weight gradient. A tensor before the first trained parameter has no
gradient, so its node computes no input gradient. The forward pass saves only what the rest of the
backward pass reads: a frozen linear layer does not save its input. Sources: PyTorch's autograd
(`requires_grad`); Transformer Engine's Linear and LayerNormLinear, which save the input only if
`weight.requires_grad`; Megatron-LM's `LinearWithFrozenWeight`.

The tape asks this for each node, so blocks do not know which of their parameters are frozen, and no
layer has a frozen variant. An adapter only says that its own parameters are trained.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from simtrain.workload.issue import Emit, IssueOrder, OverlapPolicy
from simtrain.workload.ops import Op, Phase, Tensor


@dataclass(frozen=True, slots=True)
class PartialBackward:
    """The ops of a backward pass that remain, and the tensors that they read.

    Args:
        phases: phases of its ops.
        read: tensors.
    """

    phases: frozenset[Phase]
    read: Collection[Tensor]

    @classmethod
    def of(cls, backward: Emit, *, passes_on: bool, trains: bool) -> PartialBackward:
        """Return the part of a backward pass.

        Args:
            backward: issues the whole backward pass.
            passes_on: an input needs a gradient.
            trains: its parameters are trained.
        """
        part = {Phase.INPUT_GRADIENT: passes_on, Phase.WEIGHT_GRADIENT: trains}
        phases = frozenset(phase for phase, remains in part.items() if remains)
        order = IssueOrder(OverlapPolicy(frozenset()), lambda op: op.phase in phases)
        backward(order)
        return cls(phases, {tensor for op in order.segment().ops for tensor in op.reads})

    def forward(self, emit: Emit) -> Emit:
        """Return a forward pass that saves only what the backward pass reads."""

        def emit_saving(order: IssueOrder) -> None:
            with order.changing(self._saving):
                emit(order)

        return emit_saving

    def backward(self, emit: Emit) -> Emit:
        """Return the part of a backward pass."""

        def emit_part(order: IssueOrder) -> None:
            with order.selecting(lambda op: op.phase in self.phases):
                emit(order)

        return emit_part

    def _saving(self, op: Op) -> Op:
        """Return an op without the saved tensors that nothing reads; they exist while it runs."""
        saves = tuple(tensor for tensor in op.saves if tensor in self.read)
        if len(saves) == len(op.saves):
            return op
        unsaved = sum(tensor.num_bytes for tensor in op.saves if tensor not in self.read)
        holds_bytes = op.holds_bytes if op.counts_saved else op.holds_bytes + unsaved
        return op.replace(saves=saves, holds_bytes=holds_bytes)
