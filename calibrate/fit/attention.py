"""Fits the model of fused attention (`simtrain.durations.attention`) to timed kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from calibrate.fit.entry import Data, Evidence, Origin, entry, published
from calibrate.fit.figures import (
    AttentionRate,
    FusedAttentionFigures,
    HeadSizes,
    TrainingAttentionFigures,
    TrainingRate,
)
from calibrate.fit.numbers import microseconds, minimise, round_significant
from calibrate.fit.requirements import above_peak, require
from calibrate.records.schema import AttentionRecord
from simtrain.comparison import Comparison
from simtrain.durations.attention import (
    REFERENCE_HEAD_SIZE,
    AttentionMachine,
    attention_seconds,
    narrow_head_slowdown,
)
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import FusedAttention

Timed = Sequence[tuple[FusedAttention, float]]
"""Kernels and their seconds."""
Fitted = tuple[Data, list[Comparison]]
"""The section `fused_attention` and its errors."""
_WAYS = "forward", "backward"
_KERNELS = 4
"""Shapes that two numbers need, forward and backward."""
_START = 0.5
"""Share of the peak where a search starts, with `_START_LENGTH` tokens for half of that."""
_START_LENGTH = 512.0


def published_attention(
    figures: FusedAttentionFigures | TrainingAttentionFigures, profile: HardwareProfile
) -> Fitted:
    """The section of published figures."""
    if isinstance(figures, TrainingAttentionFigures):
        return training_attention(figures, profile)
    return _forward_attention(figures, profile)


def measured_attention(
    records: Sequence[AttentionRecord],
    profile: HardwareProfile,
    origin: Origin,
    peak_flops: float | None,
) -> Fitted:
    """The section of records.

    Raises:
        InputError: E720, too few shapes; E721, a kernel ran above the datasheet's peak.
    """
    require("shapes of fused attention", len(records), _KERNELS, "kernels")
    sizes = [(r.heads, r.seq_length, r.head_size) for r in records]
    forward, backward = (
        [(FusedAttention(*size, way), time_s) for size, time_s in zip(sizes, times_s, strict=True)]
        for way, times_s in (
            (False, [r.forward.median_s for r in records]),
            (True, [r.backward.median_s for r in records]),
        )
    )
    if peak_flops is not None:
        op, seconds = max([*forward, *backward], key=lambda pair: pair[0].flops / pair[1])
        if op.flops / seconds > peak_flops:
            what = f"fused attention of {_name(op)}"
            raise InputError([above_peak(what, op.flops / seconds, peak_flops)])
    machine, shown = _fit_both_ways(forward, backward, profile)
    source = f"{origin.measured}, {len(records)} points: fused attention"
    ways = [published(f"{source} {way}", found) for way, found in zip(_WAYS, shown, strict=True)]
    section = _rates(machine, profile, *ways)
    ops = [op for op, _ in forward]
    return section | {"valid_shapes": _shape_range(ops, f"{source} forward")}, shown


def _forward_attention(figures: FusedAttentionFigures, profile: HardwareProfile) -> Fitted:
    """Forward kernels decide the rate of long sequences and the length that reaches half of it.

    Kernels timed both ways, maybe on another card, decide how much slower backward kernels are.
    They have one length, so that backward takes the half length over from forward.
    """
    both = figures.both_ways
    timed = [(FusedAttention(*point[:3]), point[3] * 1e-6) for point in figures.points]
    rated = [(FusedAttention(*point[:3]), *point[3:]) for point in both.points]
    machine = _fit(timed, _starting_machine(profile), profile.gpu.peak_flops.value)
    ratio = round_significant(median(back / ahead for _, ahead, back in rated))
    forward = _times("fused attention forward", machine, timed)
    backward = Comparison.of(
        "fused attention backward, from forward",
        "TFLOP/s",
        ((_name(op), back, ratio * ahead) for op, ahead, back in rated),
    )
    elsewhere = Comparison.of(
        "fused attention forward elsewhere (not fitted)",
        "TFLOP/s",
        (
            (_name(op), ahead, op.model_flops / attention_seconds(op, machine) / 1e12)
            for op, ahead, _ in rated
        ),
    )
    machine = replace(
        machine,
        backward_flops=ratio * machine.forward_flops,
        backward_half_length=machine.forward_half_length,
    )
    source = f"{ratio} of the forward efficiency, as {both.source}"
    section = _rates(
        machine, profile, published(figures.source, forward), published(source, backward)
    )
    section["backward_half_length"] = entry(
        machine.backward_half_length,
        f"that of forward kernels, of {figures.source}: none were timed backward over lengths",
    )
    shapes = _shape_range([op for op, _ in timed], figures.source)
    return section | {"valid_shapes": shapes}, [forward, backward, elsewhere]


def training_attention(figures: TrainingAttentionFigures, profile: HardwareProfile) -> Fitted:
    """The section of kernels that were timed both ways over lengths.

    Narrow heads decide no rate, only how much slower they are than heads of 128 channels.
    """
    sizes, other = figures.head_sizes, figures.elsewhere
    forward = _published(figures.forward.points)
    backward = _published(figures.backward.points, is_backward=True)
    machine, shown = _fit_both_ways(forward, backward, profile)
    sources = figures.forward.source, figures.backward.source
    data = _rates(machine, profile, *map(published, sources, shown))
    for way in _WAYS:
        channels, name = _softmax_channels(sizes, way), f"{way}_softmax_channels"
        machine = replace(machine, **{name: channels})  # type: ignore[arg-type]
        shown.append(_narrow_heads(sizes, way, channels))
        data[name] = published(sizes.source, shown[-1])(channels)
    seen = {name: list(both) for name, both in figures.common_ranges().items()}
    data["valid_shapes"] = entry(
        seen | {"head_size": [sizes.narrow, REFERENCE_HEAD_SIZE]},
        "sizes in the range of the points both forward and backward; head_size: that of the "
        "points of forward_softmax_channels",
    )
    others = [*_published(other.forward), *_published(other.backward, is_backward=True)]
    return data, [*shown, _times("fused attention elsewhere (not fitted)", machine, others)]


def _published(
    points: Sequence[AttentionRate | TrainingRate], *, is_backward: bool = False
) -> Timed:
    ops = [FusedAttention(*point[:3], is_backward) for point in points]
    return [(op, op.flops / (point[3] * 1e12)) for op, point in zip(ops, points, strict=True)]


def _softmax_channels(sizes: HeadSizes, way: str) -> float:
    """The channels that explain the median ratio of narrow to wide heads: a linear equation."""
    ratio = median(narrow / wide for _, narrow, wide in sizes.pairs(way))
    slope = ratio / sizes.narrow - 1 / REFERENCE_HEAD_SIZE
    return round_significant(max(0.0, (1 - ratio) / slope))


def _narrow_heads(sizes: HeadSizes, way: str, channels: float) -> Comparison:
    slowdown = narrow_head_slowdown(sizes.narrow, channels)
    rows = (
        (f"{sizes.narrow} channels, {tokens} tokens", narrow, wide / slowdown)
        for tokens, narrow, wide in sizes.pairs(way)
    )
    return Comparison.of(f"fused attention {way} of narrow heads, from wide", "TFLOP/s", rows)


def _rates(
    machine: AttentionMachine, profile: HardwareProfile, forward: Evidence, backward: Evidence
) -> Data:
    """The entries of rates and half lengths."""
    peak = profile.gpu.peak_flops.value
    return {
        "forward_efficiency": forward(round_significant(machine.forward_flops / peak)),
        "forward_half_length": forward(machine.forward_half_length),
        "backward_efficiency": backward(round_significant(machine.backward_flops / peak)),
        "backward_half_length": backward(machine.backward_half_length),
    }


def _shape_range(ops: Sequence[FusedAttention], source: str) -> Data:
    ranges = {}
    for name in ("heads", "seq_length", "head_size"):
        sizes = [getattr(op, name) for op in ops]
        ranges[name] = [min(sizes), max(sizes)]
    return entry(ranges, f"the range of the points of {source}")


def _fit_both_ways(
    forward: Timed, backward: Timed, profile: HardwareProfile
) -> tuple[AttentionMachine, list[Comparison]]:
    """The machine of kernels of both directions, and its errors."""
    machine = _starting_machine(profile)
    for timed in (forward, backward):
        machine = _fit(timed, machine, profile.gpu.peak_flops.value)
    return machine, [
        _times(f"fused attention {way}", machine, timed)
        for way, timed in zip(_WAYS, (forward, backward), strict=True)
    ]


def _starting_machine(profile: HardwareProfile) -> AttentionMachine:
    """The profile's multiprocessors, memory and latency, with rates to start a search from."""
    flops = _START * profile.gpu.peak_flops.value
    return AttentionMachine(
        forward_flops=flops,
        forward_half_length=_START_LENGTH,
        backward_flops=flops,
        backward_half_length=_START_LENGTH,
        num_sms=profile.gpu.num_sms.value,
        memory_bytes_per_s=profile.memory_bound.fused_bandwidth.value,
        latency_s=profile.memory_bound.kernel_latency.value,
    )


def _fit(timed: Timed, start: AttentionMachine, limit_flops: float) -> AttentionMachine:
    """The machine of kernels of one direction, whose rate is at most the limit."""
    way = _WAYS[timed[0][0].is_backward]

    def machine(x: Sequence[float]) -> AttentionMachine:
        rate = min(x[0] * getattr(start, f"{way}_flops"), limit_flops)
        length = round_significant(x[1] * _START_LENGTH)
        return replace(start, **{f"{way}_flops": rate, f"{way}_half_length": length})

    return minimise(machine, (1.0, 1.0), timed, attention_seconds)


def _times(title: str, machine: AttentionMachine, timed: Timed) -> Comparison:
    rows = ((_name(op), seconds, attention_seconds(op, machine)) for op, seconds in timed)
    return microseconds(title, rows)


def _name(op: FusedAttention) -> str:
    return f"{op.heads} heads of {op.seq_length} × {op.head_size}"
