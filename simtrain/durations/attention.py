"""Time of fused attention from its shape: FLOPs at a rate that grows with the sequence.

The kernel cuts the scores of each head into blocks of rows and gives one to each multiprocessor,
which goes along its keys (Dao 2023, Section 3.2). Long rows come near to a fraction of the peak;
what a block has beside its loop (reading Q, rescaling, writing the output, the block on the
diagonal that is masked in part) costs as much as a half length of more keys would. Under a causal
mask the last rows are the longest, s keys where the mean is s/2: when no block is left, each
multiprocessor waits for half of such a block in the mean. So the time is that of the FLOPs times

    1 + half length / s + multiprocessors · block rows / (heads · s)

and at least what moving the tensors takes; the kernel's latency comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from simtrain.hardware.profile import AttentionRange, FusedAttention, HardwareProfile
from simtrain.workload.work import FusedAttention as FusedAttentionOp

_BLOCK_ROWS = 128
"""Rows of a block (kBlockM of most head sizes in flash-attention's launch templates)."""


@dataclass(frozen=True, slots=True)
class AttentionMachine:
    """The numbers that decide fused attention's time; rates of long sequences in FLOP/s."""

    forward_flops: float
    forward_half_length: float
    backward_flops: float
    backward_half_length: float
    num_sms: int
    memory_bytes_per_s: float
    latency_s: float

    @classmethod
    def of(cls, profile: HardwareProfile, kernel: FusedAttention) -> Self:
        """A profile's machine."""
        peak = profile.gpu.peak_flops.value
        return cls(
            forward_flops=kernel.forward_efficiency.value * peak,
            forward_half_length=kernel.forward_half_length.value,
            backward_flops=kernel.backward_efficiency.value * peak,
            backward_half_length=kernel.backward_half_length.value,
            num_sms=profile.gpu.num_sms.value,
            memory_bytes_per_s=profile.memory_bound.fused_bandwidth.value,
            latency_s=profile.memory_bound.kernel_latency.value,
        )


def attention_seconds(op: FusedAttentionOp, machine: AttentionMachine) -> float:
    """Seconds of a forward or backward kernel."""
    if op.is_backward:
        rate, half_length = machine.backward_flops, machine.backward_half_length
    else:
        rate, half_length = machine.forward_flops, machine.forward_half_length
    per_row = half_length + machine.num_sms * _BLOCK_ROWS / op.heads
    compute_s = op.flops / rate * (1 + per_row / op.seq_length)
    return machine.latency_s + max(compute_s, op.moved_bytes / machine.memory_bytes_per_s)


def attention_is_extrapolated(op: FusedAttentionOp, seen: AttentionRange) -> bool:
    """Whether the shape lies outside what the profile's fit has seen."""
    sizes = (
        (op.heads, seen.heads),
        (op.seq_length, seen.seq_length),
        (op.head_size, seen.head_size),
    )
    return any(not low <= size <= high for size, (low, high) in sizes)
