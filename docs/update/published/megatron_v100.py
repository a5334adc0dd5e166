"""Published speeds of Megatron-LM for GPT-2 on V100s of DGX-2H nodes; nothing is fitted to them.

Sources: times of version 1.0 with 8 sequences, nv-adlr.github.io/MegatronLMV1 (15 May 2020);
TFLOP/s of the version of 2019, Shoeybi et al. 2019 (arXiv 1909.08053), abstract: 39 per GPU on one
GPU, and 15.1 PFLOP/s on 512 GPUs. Version 1.0's page prints parameters without shapes: the shapes
are those with heads of 128 channels whose parameters and FLOPs are the printed ones.
"""

from typing import NamedTuple


class Run(NamedTuple):
    """A run with sequences of 1,024 tokens and full recompute.

    Args:
        version: of Megatron-LM.
        parameters: in billions, as printed.
        layers, hidden, heads: the model.
        tensor, data: tensor-parallel ranks and replicas, of 8 sequences each.
        time_s: published time of an iteration; 0 if `tflops` is published.
        tflops: published TFLOP/s per GPU; 0 if `time_s` is published.
    """

    version: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    tensor: int
    data: int
    time_s: float = 0
    tflops: float = 0


RUNS = (
    Run("1.0", 1.2, 24, 1920, 15, 1, 1, time_s=1.288),
    Run("1.0", 2.0, 30, 2304, 18, 2, 1, time_s=1.242),
    Run("1.0", 4.2, 36, 3072, 24, 4, 1, time_s=1.357),
    Run("1.0", 8.7, 42, 4096, 32, 8, 1, time_s=1.508),
    Run("2019", 1.2, 40, 1536, 16, 1, 1, tflops=39),
    Run("2019", 8.3, 72, 3072, 32, 8, 64, tflops=29.5),
)
V1_TFLOPS = 62.4
"""Published TFLOP/s of version 1.0 on one GPU."""
