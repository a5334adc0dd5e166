"""Published throughputs of ZeRO-Offload and ZeRO-Infinity on V100s of 32 GB in DGX-2 nodes.

Sources: Ren et al. 2021, "ZeRO-Offload" (arXiv 2101.06840), abstract and Section 6; DeepSpeed's
tutorial "ZeRO-Offload" for the 10B model and its microbatch, and its script
(microsoft/DeepSpeedExamples@19624a6f, Megatron-LM/scripts/ds_zero-offload_10B_config.json) for the
batch; DeepSpeed's post "ZeRO-3 Offload" (8 March 2021). Figures that are only drawn are left out.
Sizes that the text does not print are ours: see `assumed`.
"""

from typing import NamedTuple


class Run(NamedTuple):
    """A run.

    Args:
        name: what it is.
        layers, hidden, heads: the model; sequences have 1,024 tokens.
        tensor, data: tensor-parallel ranks and replicas.
        micro, microbatches: of each replica.
        tflops: published TFLOP/s per GPU; negative for "more than".
        assumed: what its text does not print.
        parameters_on_host: ZeRO-3 with all states on the host.
        offloads: whether any states are on the host.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    tensor: int
    data: int
    micro: int
    microbatches: int
    tflops: float
    assumed: str
    parameters_on_host: bool = False
    offloads: bool = True

    @property
    def software(self) -> str:
        """The stack: ZeRO-Offload's examples have Megatron-LM of 2019, ZeRO-Infinity's v1.1.5."""
        return "deepspeed_2022" if self.parameters_on_host else "deepspeed_2020"


PYTORCH = Run(
    *("1.4B, one GPU, no offload", 26, 2048, 16, 1, 1, 2, 256, 30),
    assumed="shape, microbatch",
    offloads=False,
)
ONE_GPU = Run("10B, one GPU", 50, 4096, 32, 1, 1, 10, 51, 40, "51 microbatches")
SCRIPT = ONE_GPU._replace(
    name="10B, one GPU, 3 microbatches", microbatches=3, assumed="that its script is the run's"
)
"""The batch of DeepSpeed's script for this model (DeepSpeedExamples@19624a6f)."""
RUNS = (
    PYTORCH,
    ONE_GPU,
    SCRIPT,
    Run("10B, 16 GPUs", 50, 4096, 32, 1, 16, 8, 4, -30, "microbatch"),
    Run("10B, 128 GPUs", 50, 4096, 32, 1, 128, 8, 1, -30, "microbatch, batch"),
    Run("70B, 16 GPUs", 69, 9216, 64, 8, 2, 8, 32, -30, "shape, tensor parallel, microbatch"),
    Run("1T, 512 GPUs", 128, 25600, 160, 4, 128, 5, 1, 49, "all but GPUs and parameters", True),
)
DELAYED_SPEEDUPS = 1.12, 1.59
"""Least and largest speed-up by a delayed update, one GPU, microbatches of 8 (Section 6.2.4)."""
DELAYED_MODELS = {"1B": (20, 2048, 16), "2B": (40, 2048, 16), "4B": (64, 2304, 24)}
"""Layers, hidden size and heads of models of these sizes; the shapes are ours."""
ACHIEVABLE_FLOPS = "70 TFLOP/s"
"""What ZeRO-Infinity's analysis takes a V100 to achieve (Section 4.2): 1,024 FLOPs per byte of
parameters at a batch of 1, and 70 GB/s for half of the peak."""
