"""All-to-alls of tokens for heads (Ulysses)."""

from __future__ import annotations

from simtrain.scenario.context_exchanges.context_exchange import (
    AttentionSteps,
    ContextExchange,
    TensorT,
)


class AllToAll(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndQKVOA2A` (Ulysses; Jacobs et al. 2023)."""

    name = "a2a"
    summary = "(Ulysses) exchanges tokens for heads"
    takes_windows = True

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        """Return all ranks."""
        return num_ranks

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Exchange, attend, and exchange back."""
        steps.tokens_for_heads()
        return steps.heads_for_tokens(steps.attend())
