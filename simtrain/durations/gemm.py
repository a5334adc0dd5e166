"""Time of a matrix product from its shape: tiles, waves of tiles, and the overhead of each tile.

A GPU cuts the result into tiles, gives one to each multiprocessor, and works in waves. A last wave
that does not fill the GPU takes as long as a full one, or a part of it set by `tail_quantization`
(the library may split the remainder along k). Each tile has a prologue and an epilogue that its
loop over k must amortise; accumulating into an fp32 buffer lengthens the epilogue. The library is
assumed to choose the fastest tile. Batched products, whose operands are strided views of one
tensor, reach a fraction of that speed. So do products whose rows in memory are no multiple of 16
bytes, the width of loads to tensor cores (heads of 145 channels, an MLP of 10,922). No product
exceeds `sustained_flops`, the rate of large products over a long time, when power limits the clock.

The products of several experts run one after another. Transformer Engine starts one cuBLAS product
for each, on a few streams. SimuMax measured them on B200 (MooreThreads/SimuMax, b200_bf16_ceperm):
with H100's tiles, and the speed of the main loop from products of 1,000 and more tokens an expert,
72 forward and input-gradient products have a mean error of exp(0.18) one after another, and of
exp(0.26) if waves held tiles of all experts. With 128 to 300 tokens an expert the measured ones are
still 1.4 times as slow, and weight gradients (36) 1.6 times as fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from simtrain.hardware.profile import HardwareProfile, LayoutSpeeds, Tile
from simtrain.workload.work import Gemm, ProductType

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
        """Return a copy with some numbers changed."""
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
    return all(size * op.element_bytes % _ALIGNMENT_BYTES == 0 for size in (across, op.n))


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
