"""HybridEP: exchanges as DeepEP's, by kernels that need fewer multiprocessors."""

from __future__ import annotations

from simtrain.scenario.dispatchers.dispatcher import Dispatcher, ExpertSteps, TensorT


class HybridEP(Dispatcher):
    """HybridEP (deepseek-ai/DeepEP, branch hybrid-ep) in Megatron-LM's `_HybridEPManager`.

    Ranks gather the whole map of tokens to experts (`allgather_routing_map`), so each knows what it
    receives. The host waits for the number of rows before it launches the dispatch
    (`dispatch_with_permute` without `num_permuted_tokens`), whose permutation pads the rows of each
    expert in fp8 (`pad_multiple`, from `get_align_size_for_quantization`).
    """

    name = "hybridep"
    summary = "sends tokens as deepep does, by HybridEP's kernels"
    carries_fp8 = True
    pads_rows = True
    needs_entry = True
    megatron = "flex", "hybridep"
    torchtitan = "hybridep"

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        """Gather the map, send, permute, compute, add up and send back."""
        steps.gather_map()
        routed = steps.permute(steps.send_once())
        return steps.return_once(steps.unpermute(steps.experts(routed)))
