"""Time of fused attention from its shape: FLOPs at a rate that grows with the sequence.

The kernel cuts the scores of each head into blocks of rows and gives one block at a time to each
multiprocessor, which loops over its keys (Dao 2023, Section 3.2). Long rows approach a fixed
fraction of the peak. A block's work outside the loop (reading Q, rescaling, writing the output, the
partly masked block on the diagonal) costs as much as "half length" more keys would. Under a causal
mask the last rows are the longest: s keys against s/2 on average. When no block is left, each
multiprocessor waits on average for half of the longest block. So the time is that of the FLOPs
times

    1 + half length / s + multiprocessors · block rows / (heads · s)

and at least the time to move the tensors. The kernel's latency is added.

With a window of w tokens, rows are on average as long as the causal rows of a sequence of
l = 2w - w²/s tokens, and the longest row has w keys instead of s. Blocks at the far edge of the
window are half masked, like those on the diagonal, which adds 128 keys to the half length:

    1 + (half length + 128) / l + w/s · multiprocessors · block rows / (heads · l)

A kernel with k keys and q queries, q ≠ k, has rows as long on average as the causal rows of
l = 2k - q tokens, or l = 2k without a mask; the longest row has k keys. Without a mask there is no
block on the diagonal: the half length loses 128 keys. Nothing is fitted on these kernels. Against
cuDNN 9.19 on an H200 (64 heads, 2,048 to 32,768 tokens), predictions range from 7.1 % too long to
1.5 % too short forward, and from 5.7 % too long to 7.2 % too short backward
(NVIDIA/cudnn-frontend, h200_919_only_cudnn at commit 3929da2).

A sequence that packs documents has rows as long as the causal rows of its documents, and the
longest row is that of the longest document: l = Σ l_i² / s. All documents are in one kernel, whose
blocks fill the multiprocessors together. Blocks are within documents: the half length counts once
for each row of each document. Nothing is fitted on these kernels.

Each score also needs an exponential, which the products of a narrow head cannot hide: an H100 has
989 TFLOP/s for products and 3.9 TFLOP/s for special functions (Shah et al. 2024), so an exponential
takes as long as the products of 63 channels forward and 25 backward. A profile's rates are for
heads of 128 channels. If the softmax of a score costs as much as the products of c channels, heads
of d < 128 channels take (1 + c/d) / (1 + c/128) times as long per FLOP. Wider heads keep the rate:
FlashAttention-3 gains 4 % from 128 to 256 channels under a causal mask of 16k tokens. If value
heads have a different size, d is the mean channel count of the products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from simtrain.hardware.profile import AttentionEfficiency, AttentionRange, HardwareProfile
from simtrain.workload.work import FusedAttention

_BLOCK_ROWS = 128
"""Rows of a block (kBlockM of most head sizes in flash-attention's launch templates)."""
REFERENCE_HEAD_SIZE = 128
"""Head size, in channels, to which a profile's rates apply."""
_HEAD_MULTIPLE, _WIDEST_MULTIPLE, _WIDEST_HEAD = 32, 192, 256


@dataclass(frozen=True, slots=True)
class AttentionMachine:
    """The profile's numbers that set the time of fused attention.

    Rates are in FLOP/s, for long sequences and heads of 128 channels. Half lengths are in tokens.
    The cost of a score's softmax is in channels of a head.
    """

    forward_flops: float
    forward_half_length: float
    backward_flops: float
    backward_half_length: float
    num_sms: int
    memory_bytes_per_s: float
    latency_s: float
    forward_softmax_channels: float = 0.0
    backward_softmax_channels: float = 0.0
    flash_attention_2: float = 1.0

    @classmethod
    def of(cls, profile: HardwareProfile, kernel: AttentionEfficiency) -> Self:
        """Read the numbers from a profile."""
        peak = profile.gpu.peak_flops.value
        forward, backward = kernel.forward_softmax_channels, kernel.backward_softmax_channels
        older = kernel.flash_attention_2
        return cls(
            forward_flops=kernel.forward_efficiency.value * peak,
            forward_half_length=kernel.forward_half_length.value,
            backward_flops=kernel.backward_efficiency.value * peak,
            backward_half_length=kernel.backward_half_length.value,
            num_sms=profile.gpu.num_sms.value,
            memory_bytes_per_s=profile.memory_bound.fused_bandwidth.value,
            latency_s=profile.memory_bound.kernel_latency.value,
            forward_softmax_channels=forward.value if forward else 0.0,
            backward_softmax_channels=backward.value if backward else 0.0,
            flash_attention_2=older.value if older else 1.0,
        )


def attention_seconds(op: FusedAttention, machine: AttentionMachine) -> float:
    """Time of a forward or backward kernel."""
    if op.is_backward:
        rate, half_length = machine.backward_flops, machine.backward_half_length
        softmax_channels = machine.backward_softmax_channels
    else:
        rate, half_length = machine.forward_flops, machine.forward_half_length
        softmax_channels = machine.forward_softmax_channels
    per_row = machine.num_sms * _BLOCK_ROWS / op.heads * (op.longest_row / op.seq_length)
    if op.window is not None and op.window < max(op.lengths)[0]:
        half_length += _BLOCK_ROWS
    elif not op.is_causal:
        half_length = max(0.0, half_length - _BLOCK_ROWS)
    row_length = op.band / op.seq_length
    compute_s = op.flops / rate * (1 + (half_length + per_row) / row_length)
    speed = op.speed * (machine.flash_attention_2 if op.kernel == "flash_attention_2" else 1.0)
    compute_s *= narrow_head_slowdown(op.mean_channels, softmax_channels) / speed
    if op.kernel == "flash_attention_2":
        compute_s *= padded_channels(op.mean_channels) / op.mean_channels
    return machine.latency_s + max(compute_s, op.moved_bytes / machine.memory_bytes_per_s)


def narrow_head_slowdown(head_size: float, softmax_channels: float) -> float:
    """Time per FLOP at this head size, relative to heads of 128 channels."""
    narrow = min(head_size, REFERENCE_HEAD_SIZE)
    return (1 + softmax_channels / narrow) / (1 + softmax_channels / REFERENCE_HEAD_SIZE)


def padded_channels(head_size: float) -> float:
    """Channels of the kernel of FlashAttention-2 that computes heads of this size.

    Its kernels are for multiples of 32 channels up to 192, and for 256; it pads other heads
    (Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp, head_size_rounded).
    """
    if head_size > _WIDEST_MULTIPLE:
        return max(head_size, _WIDEST_HEAD)
    return math.ceil(head_size / _HEAD_MULTIPLE) * _HEAD_MULTIPLE


def attention_is_extrapolated(op: FusedAttention, seen: AttentionRange) -> bool:
    """Whether the shape is outside the fitted range; every window is."""
    if op.window is not None and op.window < max(op.lengths)[0]:
        return True
    sizes = (
        (op.heads, seen.heads),
        *((size, seen.seq_length) for *sizes, _ in op.lengths for size in sizes),
        (op.head_size, seen.head_size),
        (op.channels_of_value, seen.head_size),
    )
    return any(not low <= size <= high for size, (low, high) in sizes)
