"""Published times of fused attention that no profile is fitted on, and our errors against them.

Source: NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn at
commit 3929da2 (cuDNN 9.19, H200, bf16, causal): gpt_oss and dsv3.
"""

from collections.abc import Callable, Iterable, Mapping

from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.workload.work import FusedAttention

WINDOW = {
    32768: (3.021, 9.045),
    16384: (1.499, 4.392),
    8192: (0.738, 2.149),
    4096: (0.358, 1.042),
    2048: (0.166, 0.488),
}
"""Milliseconds forward and backward of two sequences by their length: a window of 1,024 tokens, 64
heads of 64 channels, 8 of keys and values."""


LATENT = {8192: (4.278, 16.162), 4096: (1.148, 4.424), 2048: (0.33, 1.271)}
"""The same of one sequence: 128 heads of 192 channels, values of 128, deterministic backward."""


def latent_kernel(length: int, is_backward: bool) -> FusedAttention:
    return FusedAttention(128, length, 192, is_backward, value_size=128)


def window_kernel(length: int, is_backward: bool) -> FusedAttention:
    return FusedAttention(2 * 64, length, 64, is_backward, kv_heads=2 * 8, window=1024)


def errors_of(kernels: Iterable[FusedAttention], published_ms: Iterable[float]) -> list[float]:
    model = DurationModel(load_profile("h200_sxm"))
    pairs = zip(kernels, published_ms, strict=True)
    return [1e3 * model.seconds(kernel) / measured - 1 for kernel, measured in pairs]


def range_of(errors: Iterable[float]) -> str:
    """From the smallest to the largest, as docs/validation.md writes it."""
    percents = sorted(100 * error for error in errors)
    return f"{percents[0]:+.1f} to {percents[-1]:+.1f} %"


def both_ways(
    points: Mapping[int, tuple[float, float]], kernel_of: Callable[[int, bool], FusedAttention]
) -> str:
    """Forward's and backward's errors in words."""
    ways = zip((False, True), zip(*points.values(), strict=True), strict=True)
    forward, backward = (
        range_of(errors_of([kernel_of(length, is_backward) for length in points], measured))
        for is_backward, measured in ways
    )
    return f"{forward} forward and {backward} backward"
