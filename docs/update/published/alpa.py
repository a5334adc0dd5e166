"""Plans of Alpa and of Megatron-LM for GPT on AWS p3.16xlarge, and their published throughputs.

Sources, all of alpa-projects/alpa (Zheng et al. 2022, OSDI): models, batches and Alpa's plans for 2
to 32 GPUs, `osdi22_artifact/suite_artifact_e2e_gpt.py` at commit 2021cd8a; the plan for 64 GPUs,
`benchmark/alpa/suite_auto_gpt.py` at commit 14ad84b4 (perf_test_suite); Megatron-LM's plans, found
by a grid search, `osdi22_artifact/megatron/benchmark_gpt.py` at commit 0f54053e; throughputs,
`osdi22_artifact/results_e2e.tsv` at commit 02b5e335 (megatron and parax.auto).
"""

from dataclasses import dataclass

MODELS = {
    "350M": (24, 1024, 16),
    "760M": (24, 1536, 16),
    "1.3B": (24, 2048, 32),
    "2.6B": (32, 2560, 32),
    "6.7B": (32, 4096, 32),
    "15B": (48, 5120, 40),
    "39B": (48, 8192, 64),
}
"""Layers, hidden size and attention heads, with 1,024 tokens and a vocabulary of 51,200."""


@dataclass(frozen=True)
class Plan:
    """A plan and its published throughput.

    Args:
        system: that found or ran it.
        model: its name.
        tensor, pipeline, data: sizes of the axes.
        microbatches: of all replicas together.
        tflops_per_gpu: published, with the FLOPs of recompute.
        batch: sequences in an iteration.
        remark: how the plan differs from what the axes express.
    """

    system: str
    model: str
    tensor: int
    pipeline: int
    data: int
    microbatches: int
    tflops_per_gpu: float
    batch: int = 1024
    remark: str = ""

    @property
    def num_gpus(self) -> int:
        """GPUs of the plan."""
        return self.tensor * self.pipeline * self.data


PLANS = (
    Plan("Alpa", "760M", 1, 2, 1, 128, 57.92),
    Plan("Alpa", "1.3B", 1, 2, 2, 128, 58.21),
    Plan("Alpa", "2.6B", 1, 4, 2, 128, 61.61, remark="stages of 2, 2 and 4 GPUs, as four of 2"),
    Plan("Alpa", "6.7B", 4, 2, 2, 64, 60.0),
    Plan("Alpa", "15B", 4, 4, 2, 128, 59.9),
    Plan("Alpa", "39B", 4, 16, 1, 1024, 57),
    Plan("Megatron-LM", "350M", 1, 1, 1, 8, 47.53, 128),
    Plan("Megatron-LM", "1.3B", 1, 2, 2, 128, 55.89),
    Plan("Megatron-LM", "2.6B", 1, 8, 1, 128, 50.44),
    Plan("Megatron-LM", "6.7B", 2, 8, 1, 256, 56.59),
    Plan("Megatron-LM", "15B", 4, 8, 1, 256, 58.24),
)
"""Alpa's first: on meshes of d x t GPUs, d shards the batch and t the weights."""
