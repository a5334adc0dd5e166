"""The time that no iteration can undercut: its products at the peak rates of the hardware."""

from __future__ import annotations

import math
from collections import Counter

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.plan import Plan
from simtrain.workload.merged_passes import RankPass, record_of
from simtrain.workload.ops import Op
from simtrain.workload.work import FusedAttention, Gemm, GroupedGemm


def least_seconds(plan: Plan, profile: HardwareProfile) -> float:
    """Return the time of the busiest rank's products, each at the peak rate of its data type.

    Passes of equal chunks may differ in what they recompute: each counts as the shortest one, so
    that no rank is given the work of another.
    """
    chunk_of = plan.model_chunks.numbers
    variants: dict[tuple[int, str, int], list[tuple[int, float]]] = {}
    for key, pass_ in plan.passes.items():
        chunk, kind, _, part = key
        passes = variants.setdefault((chunk, kind, part), [])
        passes.append((plan.num_passes[key], _product_seconds(pass_, profile)))
    alike, seconds = Counter(chunk_of), dict.fromkeys(chunk_of, 0.0)
    for (chunk, _, _), passes in variants.items():
        number = sum(number for number, _ in passes) / alike[chunk]
        seconds[chunk] += number * min(pass_s for _, pass_s in passes)
    ranks = plan.order.placement.virtual_stages
    return max(math.fsum(seconds[chunk_of[place]] for place in rank) for rank in ranks)


def _product_seconds(pass_: RankPass, profile: HardwareProfile) -> float:
    """Return the time of a pass's matrix products and attention at peak rates."""
    segments = Counter(record_of(pass_).segments)
    return math.fsum(
        number * _least_op_seconds(op, profile)
        for segment, number in segments.items()
        for op in segment.ops
    )


def _least_op_seconds(op: Op, profile: HardwareProfile) -> float:
    """Return the time of an op's FLOPs at the peak; 0 if it has none, or no peak is known."""
    match op.work:
        case Gemm() | GroupedGemm() as product:
            peak = profile.peak_flops(product.dtype)
        case FusedAttention() as product:
            peak = profile.gpu.peak_flops.value
        case _:
            return 0.0
    return product.flops / peak if peak else 0.0
