"""DeepEP: a token crosses the network once for each node, then NVLink once for each rank."""

from __future__ import annotations

from simtrain.scenario.dispatchers.dispatcher import Dispatcher, ExpertSteps, TensorT


class DeepEP(Dispatcher):
    """DeepEP's normal kernels (deepseek-ai/DeepEP) in Megatron-LM's `_DeepepManager`.

    The host waits for the counts of received tokens before it launches the dispatch. The backward
    pass of each exchange is the other one; it knows the counts.
    """

    name = "deepep"
    summary = "sends each token once to each node and rank of its experts, by DeepEP's kernels"
    carries_fp8 = True
    needs_entry = True
    megatron = "flex", "deepep"
    torchtitan = "deepep"

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        """Exchange counts, send, permute, compute, add up and send back."""
        steps.exchange_counts()
        routed = steps.permute(steps.map_received(steps.send_once()))
        return steps.return_once(steps.unpermute(steps.experts(routed)))
