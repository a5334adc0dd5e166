"""All-gathers of the library of collectives: all tokens go to every rank."""

from __future__ import annotations

from simtrain.scenario.dispatchers.dispatcher import Dispatcher, ExpertSteps, TensorT


class AllGather(Dispatcher):
    """Megatron-LM's `MoEAllGatherTokenDispatcher`, whose host waits before it permutes tokens."""

    name = "all_gather"
    summary = "sends all tokens to every rank, by all-gathers"
    overlaps_compute = False
    megatron = "allgather", None

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        """Gather, permute the tokens of the rank's experts, compute, add up and reduce."""
        routed = steps.permute(steps.gather(), counts_rows=True)
        return steps.reduce(steps.unpermute(steps.experts(routed)))
