"""A ring: fused kernels attend to one block of keys while the next one is in flight."""

from __future__ import annotations

from simtrain.scenario.context_exchanges.context_exchange import (
    AttentionSteps,
    ContextExchange,
    TensorT,
)


class Ring(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVP2P` (ring attention; Liu et al. 2023)."""

    name = "p2p"
    summary = "passes keys and values around a ring, overlapped with attention"
    takes_latent = True
    takes_documents = True

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Attend around the ring."""
        return steps.attend_around_ring()
