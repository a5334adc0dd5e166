"""All-to-alls of the library of collectives: one copy of a token for each of its experts."""

from __future__ import annotations

from simtrain.scenario.dispatchers.dispatcher import Dispatcher, ExpertSteps, TensorT


class AllToAll(Dispatcher):
    """Megatron-LM's `MoEAlltoAllTokenDispatcher` (core/transformer/moe/token_dispatcher.py).

    The host copies the counts of tokens while rows are permuted, and waits for them before it
    launches the all-to-all ("before_ep_alltoall").
    """

    name = "all_to_all"
    summary = "sends a copy of each token for each of its experts, by all-to-alls"
    has_capacity = True
    megatron = "alltoall", None
    torchtitan = "standard"

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        """Permute, exchange, compute, exchange back and add up."""
        routed = steps.all_to_all(steps.permute_sent())
        return steps.unpermute(steps.all_to_all_back(steps.experts(routed)))
