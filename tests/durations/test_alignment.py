"""Products whose rows are no multiple of 16 bytes, and heads that kernels pad, worked by hand."""

import dataclasses

import pytest

from simtrain.durations.model import (
    AttentionMachine,
    GemmMachine,
    attention_seconds,
    gemm_seconds,
    padded_channels,
)
from simtrain.hardware.load import load_profile
from simtrain.workload.work import FusedAttention, Gemm

H100 = load_profile("h100_sxm")
UNALIGNED = 272.7 / 395


@pytest.mark.parametrize(
    ("product", "is_aligned"),
    [
        (Gemm(8191, 4096, 4096), True),  # rows of tokens may be as many as they like
        (Gemm(8192, 10922, 4096), False),
        (Gemm(8192, 4096, 10922), False),
        (Gemm(8192, 10920, 4096), True),
        (Gemm(4096, 10922, 8192, layout="NT"), False),
        (Gemm(10922, 4096, 8192, layout="NT"), False),
        (Gemm(4096, 4096, 8191, layout="NT"), True),
        (Gemm(8192, 4100, 4096, element_bytes=4, dtype="fp32"), True),
        (Gemm(8192, 4102, 4096, element_bytes=4, dtype="fp32"), False),
    ],
)
def test_rows_of_16_bytes_are_as_fast_as_any(product: Gemm, is_aligned: bool) -> None:
    """Power and memory do not limit the product here, so that the time is that of its tiles."""
    machine = GemmMachine.of(H100, product.dtype).replace(
        sustained_flops=1e18, memory_bytes_per_s=1e18
    )
    anywhere = machine.replace(unaligned_speed=1.0)
    expected_s = gemm_seconds(product, anywhere) / (1.0 if is_aligned else UNALIGNED)
    assert gemm_seconds(product, machine) == pytest.approx(expected_s, rel=1e-4)


def test_flash_attention_2_pads_heads_to_its_kernels() -> None:
    """32, 64, 96, 128, 160, 192 and 256 channels."""
    heads = {16: 32, 64: 64, 80: 96, 112: 128, 128: 128, 145: 160, 192: 192, 193: 256, 256: 256}
    assert {head: padded_channels(head) for head in heads} == heads
    assert H100.fused_attention is not None
    machine = dataclasses.replace(
        AttentionMachine.of(H100, H100.fused_attention), memory_bytes_per_s=1e18, latency_s=0.0
    )
    op = FusedAttention(8, 4096, 145, kernel="flash_attention_2")
    newest = dataclasses.replace(op, kernel="newest")
    speed = machine.flash_attention_2
    expected_s = attention_seconds(newest, machine) / speed * 160 / 145
    assert attention_seconds(op, machine) == pytest.approx(expected_s)
