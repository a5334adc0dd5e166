"""All-gathers of all keys and values before attention."""

from __future__ import annotations

from simtrain.scenario.context_exchanges.context_exchange import (
    AttentionSteps,
    ContextExchange,
    TensorT,
)


class AllGather(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVAllGather` (Dubey et al. 2024, Section 3.3.2)."""

    name = "all_gather"
    summary = "gathers all keys and values before attention"

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Gather, and attend."""
        return steps.attend_to_gathered()
