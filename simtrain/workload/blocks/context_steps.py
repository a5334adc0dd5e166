"""The steps of attention that an exchange of context-parallel ranks puts in order, as nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simtrain.errors import InputError
from simtrain.scenario.context_exchanges import AttentionSteps
from simtrain.workload.blocks.attention_core import AttentionCore
from simtrain.workload.blocks.context import (
    gathered_attention,
    heads_for_tokens,
    ring_attention,
    tokens_for_heads,
)
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Context

Attend = Callable[[AttentionCore, tuple[Tensor, ...], Tensor], Tensor]
"""Records a fused kernel, from queries and keys, and values."""


class ContextSteps(AttentionSteps[Tensor]):
    """Records the steps of attention under context parallelism on the tape.

    Args:
        core: the rank's heads, before ranks exchange tokens for heads.
        context: the ranks.
        inputs: queries and keys, and values.
        attend: records a fused kernel.
        drops_out: dropout on the softmax of unfused attention.
    """

    def __init__(
        self,
        core: AttentionCore,
        context: Context,
        inputs: tuple[Tensor, ...],
        attend: Attend,
        *,
        drops_out: bool,
    ) -> None:
        self.drops_out = drops_out
        self.core, self.context, self.inputs, self._attend = core, context, inputs, attend
        ranks = context.heads.num_ranks
        self._part = replace(
            core, heads=core.heads // ranks, groups=core.groups // ranks, ranks_of_heads=ranks
        )

    def tokens_for_heads(self) -> None:
        """Exchange tokens for heads."""
        self.inputs = tokens_for_heads(self.core, self.context.heads, self.inputs)

    def heads_for_tokens(self, y: Tensor) -> Tensor:
        """Exchange heads for tokens."""
        # A ring has not saved its output.
        back_again = self.context.keys.num_ranks > 1
        return heads_for_tokens(self.core, y, self.context.heads, back_again=back_again)

    def attend(self) -> Tensor:
        """Record one kernel."""
        return self._attend(self._part, self.inputs[:-1], self.inputs[-1])

    def attend_around_ring(self) -> Tensor:
        """Record ring attention."""
        self._refuse_window()
        saves_output = self.context.heads.num_ranks == 1
        return ring_attention(self._part, self.context.keys, self.inputs, saves_output=saves_output)

    def attend_to_gathered(self) -> Tensor:
        """Record attention to gathered keys."""
        self._refuse_window()
        return gathered_attention(self._part, self.context.keys, self.inputs)

    def _refuse_window(self) -> None:
        if self.core.window is not None:
            message = "attention with a window cannot exchange keys and values between ranks"
            fix = "set parallelism.context_communication to a2a"
            raise InputError.of("E508", message, fix=fix)
