"""Duration of any work on a hardware profile: matrix products, attention and all others."""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from typing import Any, Self

from simtrain.base.values import dataclass, field, replace
from simtrain.durations.collectives import (
    collective_is_extrapolated,
    collective_seconds,
    device_load,
    transfer_seconds,
)
from simtrain.hardware.profile import (
    AttentionEfficiency,
    AttentionRange,
    HardwareProfile,
    LayoutSpeeds,
    Tile,
)
from simtrain.hardware.sections import KernelBandwidths
from simtrain.workload.work import (
    Collective,
    Elementwise,
    FusedAttention,
    Gemm,
    GroupedGemm,
    HostResource,
    HostWork,
    KernelFamily,
    ProductType,
    SliceCopies,
    Work,
)

# Time of a matrix product from its shape: tiles, waves of tiles, and the overhead of each tile.
#
# A GPU cuts the result into tiles, gives one to each multiprocessor, and works in waves. A last
# wave that does not fill the GPU takes as long as a full one, or a part of it set by
# `tail_quantization` (the library may split the remainder along k). Each tile has a prologue and an
# epilogue that its loop over k must amortise; accumulating into an fp32 buffer lengthens the
# epilogue. The library is assumed to choose the fastest tile. Batched products, whose operands are
# strided views of one tensor, reach a fraction of that speed. So do products whose rows in memory
# are no multiple of 16 bytes, the width of loads to tensor cores (heads of 145 channels, an MLP of
# 10,922). No product exceeds `sustained_flops`, the rate of large ones when power limits the clock.
#
# The products of several experts run one after another. Transformer Engine starts one cuBLAS
# product for each, on a few streams. Of 72 forward and input-gradient products on B200 (SimuMax,
# b200_bf16_ceperm; H100's tiles, a main loop fitted from 1,000 tokens an expert) the mean error is
# exp(0.18), or exp(0.26) if waves held tiles of all. With 128 to 300 tokens an expert they are
# still 1.4 times as slow, and weight gradients (36) 1.6 times as fast.

_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class GemmMachine:
    """The profile's numbers that set the time of a matrix product; `*_flops` in FLOP/s."""

    num_sms: int
    memory_bytes_per_s: float
    mainloop_flops: float
    tail_quantization: float
    tile_overhead_s: float
    accumulate_overhead_s: float
    batched_fraction: float
    sustained_flops: float
    tiles: tuple[Tile, ...]
    layouts: LayoutSpeeds | None = None
    unaligned_speed: float = 1.0

    @classmethod
    def of(cls, profile: HardwareProfile, dtype: ProductType = "bf16") -> Self:
        """Read a data type's numbers from a profile, at the speed of products inside a layer."""
        model, rates = profile.gemm, profile.product_rates(dtype)
        assert rates is not None, "a scenario is checked against its profile before"
        moving = model.operand_bandwidth or profile.memory_bound.fused_bandwidth
        return cls(
            num_sms=profile.gpu.num_sms.value,
            memory_bytes_per_s=moving.value,
            mainloop_flops=rates.mainloop_flops.value * model.in_situ_speed.value,
            tail_quantization=(rates.tail_quantization or model.tail_quantization).value,
            tile_overhead_s=(rates.tile_overhead or model.tile_overhead).value,
            accumulate_overhead_s=model.accumulate_overhead.value,
            batched_fraction=model.batched_fraction.value,
            sustained_flops=rates.sustained_flops.value,
            tiles=tuple(model.tiles.value),
            layouts=rates.layouts.value if rates.layouts else None,
            unaligned_speed=model.unaligned_speed.value if model.unaligned_speed else 1.0,
        )

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)


def gemm_seconds(op: Gemm, machine: GemmMachine) -> float:
    """Time of one product: its fastest tiling, limited by power and memory bandwidth."""
    tiled_s = _tiled_seconds(op, machine)
    if op.batch > 1:
        tiled_s /= machine.batched_fraction
    elif machine.layouts:
        tiled_s /= getattr(machine.layouts, op.layout)
    if not _is_aligned(op):
        tiled_s /= machine.unaligned_speed
    sustained_s = op.flops / machine.sustained_flops
    return max(tiled_s, sustained_s, op.moved_bytes / machine.memory_bytes_per_s)


def _is_aligned(op: Gemm) -> bool:
    """Whether the rows of both operands and of the result are multiples of 16 bytes.

    Rows are along k and n, and along m and n in a weight gradient: its k are the tokens, of which
    each has a row.
    """
    across = op.m if op.layout == "NT" else op.k
    size = op.element_bytes
    return not (across * size % _ALIGNMENT_BYTES or op.n * size % _ALIGNMENT_BYTES)


def gemm_is_extrapolated(op: Gemm, profile: HardwareProfile) -> bool:
    """Whether the shape is outside the fitted range of its data type."""
    rates = profile.product_rates(op.dtype)
    valid = rates.valid_shapes if rates else None
    if op.batch > 1:
        valid = profile.gemm.valid_batched_shapes if op.dtype == "bf16" else None
    if valid is None:
        return True
    seen = valid.value
    pairs = ((op.m, seen.m), (op.n, seen.n), (op.k, seen.k))
    return any(not low <= size <= high for size, (low, high) in pairs)


def _tiled_seconds(op: Gemm, machine: GemmMachine) -> float:
    """Time of a product with its fastest tile, before limits by power and memory bandwidth.

    A fit calls it some 100,000 times, so the loop calls no functions of its own.
    """
    overhead_s, quantization = machine.tile_overhead_s, machine.tail_quantization
    if op.accumulate and op.output_element_bytes > op.element_bytes:
        overhead_s += machine.accumulate_overhead_s
    fastest_s = math.inf
    for tile in machine.tiles:
        num_tiles = op.batch * -(-op.m // tile.m) * -(-op.n // tile.n)
        filled = num_tiles / machine.num_sms
        # Between the filled waves of tiles and the next integer.
        num_waves = quantization * math.ceil(filled)
        num_waves += (1 - quantization) * (filled if filled > 1 else 1.0)
        flops_per_sm = machine.mainloop_flops * tile.relative_speed / machine.num_sms
        loop_s = 2 * tile.m * tile.n * op.k / flops_per_sm
        tiled_s = num_waves * (loop_s + overhead_s)
        if tiled_s < fastest_s:
            fastest_s = tiled_s
    return fastest_s


# Time of fused attention from its shape: FLOPs at a rate that grows with the sequence.
#
# The kernel cuts the scores of each head into blocks of rows and gives one block at a time to each
# multiprocessor, which loops over its keys (Dao 2023, Section 3.2). Long rows approach a fixed
# fraction of the peak. A block's work outside the loop (reading Q, rescaling, writing the output,
# the partly masked block on the diagonal) costs as much as "half length" more keys would. Under a
# causal mask the last rows are the longest: s keys against s/2 on average. When no block is left,
# each multiprocessor waits on average for half of the longest block. So the time is that of the
# FLOPs times
#
#     1 + half length / s + multiprocessors · block rows / (heads · s)
#
# and at least the time to move the tensors. The kernel's latency is added.
#
# With a window of w tokens, rows are on average as long as the causal rows of a sequence of
# l = 2w - w²/s tokens, and the longest row has w keys instead of s. Blocks at the far edge of the
# window are half masked, like those on the diagonal, which adds 128 keys to the half length:
#
#     1 + (half length + 128) / l + w/s · multiprocessors · block rows / (heads · l)
#
# A kernel with k keys and q queries, q ≠ k, has rows as long on average as the causal rows of l =
# 2k - q tokens, or l = 2k without a mask; the longest row has k keys. Without a mask there is no
# block on the diagonal: the half length loses 128 keys. Nothing is fitted on these kernels. Against
# cuDNN 9.19 on an H200 (64 heads, 2,048 to 32,768 tokens), predictions range from 7.1 % too long to
# 1.5 % too short forward, and from 5.7 % too long to 7.2 % too short backward
# (NVIDIA/cudnn-frontend, h200_919_only_cudnn at commit 3929da2).
#
# A sequence that packs documents has rows as long as the causal rows of its documents, and the
# longest row is that of the longest document: l = Σ l_i² / s. All documents are in one kernel,
# whose blocks fill the multiprocessors together. Blocks are within documents: the half length
# counts once for each row of each document. Nothing is fitted on these kernels.
#
# Each score also needs an exponential, which the products of a narrow head cannot hide: an H100 has
# 989 TFLOP/s for products and 3.9 TFLOP/s for special functions (Shah et al. 2024), so an
# exponential takes as long as the products of 63 channels forward and 25 backward. A profile's
# rates are for heads of 128 channels. If the softmax of a score costs as much as the products of c
# channels, heads of d < 128 channels take (1 + c/d) / (1 + c/128) times as long per FLOP. Wider
# heads keep the rate: FlashAttention-3 gains 4 % from 128 to 256 channels under a causal mask of
# 16k tokens. If value heads have a different size, d is the mean channel count of the products.

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


_MOST_CACHED = 1 << 17


@dataclass(frozen=True)
class DurationModel:
    """Durations of work that runs alone on a profile's machine; equal work is computed once."""

    profile: HardwareProfile
    _seconds: dict[Work, float] = field(default_factory=dict, repr=False)
    _machines: dict[ProductType, GemmMachine] = field(default_factory=dict, repr=False)

    def gemm_machine(self, dtype: ProductType) -> GemmMachine:
        if dtype not in self._machines:
            self._machines[dtype] = GemmMachine.of(self.profile, dtype)
        return self._machines[dtype]

    def seconds(self, work: Work) -> float:
        if type(work) is Elementwise:  # takes less time than to look it up
            return self._kernel_seconds(work)
        known = self._seconds.get(work)
        if known is None:
            if len(self._seconds) >= _MOST_CACHED:  # bounds the memory of long studies
                self._seconds.clear()
            known = self._seconds[work] = self._seconds_of(work)
        return known

    def transfer_s(self, num_bytes: float, levels_crossed: int, num_sharing: int = 1) -> float:
        """Time of a transfer between pipeline ranks (see `transfer_seconds`)."""
        return transfer_seconds(
            num_bytes, levels_crossed, num_sharing=num_sharing, profile=self.profile
        )

    def device_load(self, work: Work) -> float:
        """Share of the GPU that work alone uses: 1, less for a collective, 0 for copy engines."""
        if isinstance(work, Collective):
            return device_load(work, self.seconds, self.profile)
        return 0.0 if isinstance(work, HostWork) else 1.0

    def is_extrapolated(self, work: Work) -> bool:
        """Whether the work is outside the range on which the profile was fitted."""
        match work:
            case Gemm():
                return gemm_is_extrapolated(work, self.profile)
            case GroupedGemm():
                return self.is_extrapolated(work.product)
            case FusedAttention():
                kernel = self.profile.fused_attention
                return kernel is not None and attention_is_extrapolated(
                    work, kernel.valid_shapes.value
                )
            case Collective():
                return collective_is_extrapolated(work, self.profile)
        return False

    def _seconds_of(self, work: Work) -> float:
        match work:
            case Gemm():
                return gemm_seconds(work, self.gemm_machine(work.dtype))
            case GroupedGemm():
                return work.batch * self.seconds(work.product)
            case FusedAttention():
                kernel = self.profile.fused_attention
                assert kernel is not None, "a scenario is checked against its profile before"
                return attention_seconds(work, AttentionMachine.of(self.profile, kernel))
            case SliceCopies():
                return work.num_slices * self.profile.host.issue.value
            case Elementwise():
                return self._kernel_seconds(work)
            case Collective():
                return collective_seconds(work, self.profile)
            case HostWork():
                return work.num_bytes / self._host_bytes_per_s(work)

    def _kernel_seconds(self, work: Elementwise) -> float:
        latency_s = self.profile.memory_bound.kernel_latency.value
        return latency_s + work.moved_bytes / self._bandwidths[work.family, work.is_backward]

    @cached_property
    def _bandwidths(self) -> dict[tuple[KernelFamily, bool], float]:
        """The bandwidth of each family's kernels, forward and backward."""
        memory, bandwidths = self.profile.memory_bound, {}
        for family, is_backward in itertools.product(KernelFamily, (False, True)):
            of_family: KernelBandwidths | None = getattr(memory.kernels, family.value, None)
            measured = of_family and (of_family.backward if is_backward else of_family.forward)
            if of_family and measured is None and family.is_alike_backward:
                measured = of_family.forward
            default = memory.stream_bandwidth if family.streams else memory.fused_bandwidth
            bandwidths[family, is_backward] = (measured or default).value
        return bandwidths

    def _host_bytes_per_s(self, work: HostWork) -> float:
        """One GPU's share of a resource of its node, given the ranks that use it."""
        gpus = self.profile.cluster.gpus_per_node.value
        users = gpus if work.users is None else min(work.users, gpus)
        link = self.profile.host_link
        assert link is not None, "scenario.check refuses offloading without a host_link"
        is_adam = work.resource is HostResource.ADAM
        of_each = (link.adam_bandwidth if is_adam else link.bandwidth).value
        shared = of_each * gpus / users if is_adam or link.single_bandwidth else of_each
        alone = link.adam_thread_bandwidth if is_adam else link.single_bandwidth
        number = work.threads if is_adam else 1
        return min(shared, number * alone.value) if alone and number else shared
