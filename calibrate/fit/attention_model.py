"""Fits the model of fused attention (`simtrain.durations.attention`) to kernels that were timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from scipy.optimize import minimize

from calibrate.fit.figures import (
    AttentionRate,
    AttentionRates,
    AttentionTime,
    FusedAttentionFigures,
    HeadSizes,
    TrainingAttentionFigures,
    TrainingRate,
)
from calibrate.fit.parts import Data, entry
from calibrate.fit.residuals import Residual, Residuals, round_significant
from simtrain.durations.attention import (
    REFERENCE_HEAD_SIZE,
    AttentionMachine,
    attention_seconds,
    narrow_head_slowdown,
)
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import FusedAttention

Timed = Sequence[tuple[FusedAttention, float]]
"""Kernels and their seconds."""
_START = 0.5
"""Of the peak, where a search starts, with `_START_LENGTH` tokens for half of that."""
_START_LENGTH = 512.0


def published_attention(
    figures: FusedAttentionFigures, profile: HardwareProfile
) -> tuple[Data, Sequence[Residuals]]:
    """A profile's section, and how far it is from the figures.

    Forward kernels decide the rate of long sequences and the length at which half of it is left;
    how much slower backward kernels are, those do that were timed both ways, maybe on another card:
    of one length, so that backward takes over the forward kernels' half length.
    """
    timed = [(_forward(point), point[3] * 1e-6) for point in figures.points]
    both = figures.both_ways
    peak = profile.gpu.peak_flops.value
    machine = fit_attention(timed, starting_machine(profile), peak)
    ratio = round_significant(median(point[4] / point[3] for point in both.points))
    forward = times("fused attention forward", machine, timed)
    backward = Residuals(
        "fused attention backward, from forward",
        "TFLOP/s",
        [Residual(_name(_forward(p)), p[4], ratio * p[3]) for p in both.points],
    )
    elsewhere = Residuals(
        "fused attention forward elsewhere (not fitted)",
        "TFLOP/s",
        [_elsewhere(point, machine) for point in both.points],
    )
    machine = replace(
        machine,
        backward_flops=ratio * machine.forward_flops,
        backward_half_length=machine.forward_half_length,
    )
    backward_source = f"{ratio} of the forward efficiency, as {both.source}"
    data = attention_entries(
        machine,
        peak,
        [op for op, _ in timed],
        forward=(figures.source, forward.summary()),
        backward=(backward_source, backward.summary()),
    )
    data["backward_half_length"] = entry(
        machine.backward_half_length,
        f"that of forward kernels, of {figures.source}: none were timed backward over lengths",
    )
    return data, (forward, backward, elsewhere)


def training_attention(
    figures: TrainingAttentionFigures, profile: HardwareProfile
) -> tuple[Data, Sequence[Residuals]]:
    """A profile's section from kernels that were timed both ways over lengths.

    Narrow heads decide no rate, only how much slower they are than heads of 128 channels.
    """
    peak, sizes = profile.gpu.peak_flops.value, figures.head_sizes
    forward = _timed(figures.forward.points)
    backward = _timed(figures.backward.points, is_backward=True)
    machine = starting_machine(profile)
    for timed in (forward, backward):
        machine = fit_attention(timed, machine, peak)
    channels = {way: _softmax_channels(sizes, way) for way in ("forward", "backward")}
    machine = replace(
        machine,
        forward_softmax_channels=channels["forward"],
        backward_softmax_channels=channels["backward"],
    )
    shown = (
        times("fused attention forward", machine, forward),
        times("fused attention backward", machine, backward),
    )
    narrow = [_narrow_heads(sizes, way, channels[way]) for way in channels]
    other = figures.elsewhere
    elsewhere = [*_timed(other.forward), *_timed(other.backward, is_backward=True)]
    data = _rate_entries(
        machine,
        peak,
        forward=(figures.forward.source, shown[0].summary()),
        backward=(figures.backward.source, shown[1].summary()),
    )
    for (way, value), residuals in zip(channels.items(), narrow, strict=True):
        data[f"{way}_softmax_channels"] = entry(value, sizes.source, residuals.summary())
    seen = {name: list(both) for name, both in figures.seen_both_ways().items()}
    data["valid_shapes"] = entry(
        seen | {"head_size": [sizes.narrow, REFERENCE_HEAD_SIZE]},
        "sizes in the range of the points both forward and backward; head_size: that of the "
        "points of forward_softmax_channels",
    )
    title = "fused attention elsewhere (not fitted)"
    return data, (*shown, *narrow, times(title, machine, elsewhere))


def _softmax_channels(sizes: HeadSizes, way: str) -> float:
    """The channels that explain the median ratio of narrow to wide heads: a linear equation."""
    ratio = median(narrow / wide for _, narrow, wide in sizes.pairs(way))
    slope = ratio / sizes.narrow - 1 / REFERENCE_HEAD_SIZE
    return round_significant(max(0.0, (1 - ratio) / slope))


def _narrow_heads(sizes: HeadSizes, way: str, channels: float) -> Residuals:
    slowdown = narrow_head_slowdown(sizes.narrow, channels)
    rows = [
        Residual(f"{sizes.narrow} channels, {tokens} tokens", narrow, wide / slowdown)
        for tokens, narrow, wide in sizes.pairs(way)
    ]
    return Residuals(f"fused attention {way} of narrow heads, from wide", "TFLOP/s", rows)


def attention_entries(
    machine: AttentionMachine,
    peak_flops: float,
    ops: Sequence[FusedAttention],
    *,
    forward: tuple[str, str],
    backward: tuple[str, str],
) -> Data:
    """The section `fused_attention`; `forward` and `backward` are source and what it is fitted on.

    `ops` are those that were timed.
    """
    axes = ("heads", "seq_length", "head_size")
    seen = {name: [getattr(op, name) for op in ops] for name in axes}
    return _rate_entries(machine, peak_flops, forward=forward, backward=backward) | {
        "valid_shapes": entry(
            {name: [min(sizes), max(sizes)] for name, sizes in seen.items()},
            f"the range of the points of {forward[0]}",
        )
    }


def _rate_entries(
    machine: AttentionMachine,
    peak_flops: float,
    *,
    forward: tuple[str, str],
    backward: tuple[str, str],
) -> Data:
    return {
        "forward_efficiency": entry(
            round_significant(machine.forward_flops / peak_flops), *forward
        ),
        "forward_half_length": entry(machine.forward_half_length, *forward),
        "backward_efficiency": entry(
            round_significant(machine.backward_flops / peak_flops), *backward
        ),
        "backward_half_length": entry(machine.backward_half_length, *backward),
    }


def starting_machine(profile: HardwareProfile) -> AttentionMachine:
    """The profile's multiprocessors, memory and latency, with rates to start a search from."""
    return AttentionMachine(
        forward_flops=_START * profile.gpu.peak_flops.value,
        forward_half_length=_START_LENGTH,
        backward_flops=_START * profile.gpu.peak_flops.value,
        backward_half_length=_START_LENGTH,
        num_sms=profile.gpu.num_sms.value,
        memory_bytes_per_s=profile.memory_bound.fused_bandwidth.value,
        latency_s=profile.memory_bound.kernel_latency.value,
    )


def fit_attention(timed: Timed, start: AttentionMachine, limit_flops: float) -> AttentionMachine:
    """The machine with the least mean |log(fitted / measured)| of kernels of one direction.

    Its rate of that direction is not above the limit; the other direction stays as it starts.
    """
    way = "backward" if timed[0][0].is_backward else "forward"

    def machine(x: Sequence[float]) -> AttentionMachine:
        rate = min(x[0] * getattr(start, f"{way}_flops"), limit_flops)
        length = round_significant(x[1] * _START_LENGTH)
        return replace(start, **{f"{way}_flops": rate, f"{way}_half_length": length})

    def loss(x: Sequence[float]) -> float:
        if min(x) <= 0:
            return math.inf
        candidate = machine(x)
        errors = (abs(math.log(attention_seconds(op, candidate) / took)) for op, took in timed)
        return math.fsum(errors) / len(timed)

    options = {"maxiter": 3000, "xatol": 1e-5, "fatol": 1e-9}
    found = minimize(loss, (1.0, 1.0), method="Nelder-Mead", options=options).x
    return machine([round_significant(float(value)) for value in found])


def times(title: str, machine: AttentionMachine, timed: Timed) -> Residuals:
    """How well a machine explains kernels."""
    rows = [
        Residual(_name(op), took * 1e6, attention_seconds(op, machine) * 1e6) for op, took in timed
    ]
    return Residuals(title, "us", rows)


def _timed(
    points: Sequence[AttentionRate | TrainingRate], *, is_backward: bool = False
) -> list[tuple[FusedAttention, float]]:
    ops = (FusedAttention(*point[:3], is_backward) for point in points)
    return [(op, op.flops / (point[3] * 1e12)) for op, point in zip(ops, points, strict=True)]


def _forward(point: AttentionTime | AttentionRates) -> FusedAttention:
    heads, length, size, *_ = point
    return FusedAttention(heads, length, size)


def _elsewhere(point: AttentionRates, machine: AttentionMachine) -> Residual:
    """Rates of whole products, as the figures count them."""
    op = _forward(point)
    rate = op.model_flops / attention_seconds(op, machine) / 1e12
    return Residual(_name(op), point[3], rate)


def _name(op: FusedAttention) -> str:
    return f"{op.heads} heads of {op.seq_length} × {op.head_size}"
