"""All-to-alls within subgroups, and rings between them."""

from __future__ import annotations

from simtrain.scenario.context_exchanges.context_exchange import (
    AttentionSteps,
    ContextExchange,
    TensorT,
)


class Hierarchical(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVP2P` with all-to-alls in subgroups."""

    name = "a2a+p2p"
    summary = (
        "exchanges tokens for heads within subgroups, and passes keys and values around rings "
        "between them"
    )
    has_subgroups = True
    takes_latent = True

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        """Return the ranks of a subgroup."""
        return subgroup or 1

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Exchange, attend around the ring, and exchange back."""
        steps.tokens_for_heads()
        return steps.heads_for_tokens(steps.attend_around_ring())
