"""Fits the model of fused attention (`simtrain.durations.model`) to timed kernels."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import median

from calibrate.fit.base import (
    Data,
    Evidence,
    entry,
    measured,
    microseconds,
    minimise,
    published,
    round_significant,
    shape_range,
)
from calibrate.fit.doubts import require
from calibrate.fit.figures import (
    AttentionRate,
    FusedAttentionFigures,
    TrainingAttentionFigures,
    TrainingRate,
)
from calibrate.records.schema import AttentionRecord
from simtrain.base.accuracy import ErrorTable
from simtrain.durations.model import (
    REFERENCE_HEAD_SIZE,
    AttentionMachine,
    attention_seconds,
    narrow_head_slowdown,
)
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import FusedAttention

Timed = list[tuple[FusedAttention, float]]
"""Kernels and their seconds."""
Fitted = tuple[Data, list[ErrorTable]]
"""The section `fused_attention` and its errors."""
_WAYS = "forward", "backward"
_SIZES = "heads", "seq_length", "head_size"
_KERNELS = 4
"""Shapes that two numbers need, forward and backward."""
_START = 0.5
"""Share of the peak where a search starts, with `_START_LENGTH` tokens for half of that."""
_START_LENGTH = 512.0


def measured_attention(
    records: Sequence[AttentionRecord],
    profile: HardwareProfile,
    origin: str,
) -> Fitted:
    """The section of records.

    Raises:
        InputError: E720, too few shapes.
    """
    require("shapes of fused attention", len(records), _KERNELS, "kernels")
    ways: list[Timed] = [[], []]
    for r, (way, timed) in product(records, zip(_WAYS, ways, strict=True)):
        op = FusedAttention(r.heads, r.seq_length, r.head_size, way == "backward")
        timed.append((op, getattr(r, way).median_s))
    machine, shown = _fit(ways, profile)
    section = _rates(machine, profile, [measured(origin, comparison) for comparison in shown])
    points = f"{origin}, {len(records)} points: {shown[0].title}"
    return section | {"valid_shapes": _range_entry(ways[0], points)}, shown


def published_attention(figures: FusedAttentionFigures, profile: HardwareProfile) -> Fitted:
    """The section of published kernels that were timed over lengths forward only.

    Forward kernels decide the rate of long sequences and the length that reaches half of it.
    Kernels timed both ways, maybe on another card, decide how much slower backward kernels are.
    They have one length, so that backward takes the half length over from forward.
    """
    both = figures.both_ways
    timed = [(FusedAttention(*point[:3]), point[3] * 1e-6) for point in figures.points]
    rated = [(FusedAttention(*point[:3]), *point[3:]) for point in both.points]
    machine, (forward,) = _fit([timed], profile)
    ratio = round_significant(median(back / ahead for _, ahead, back in rated))
    rows = ((_name(op), back, ratio * ahead) for op, ahead, back in rated)
    backward = ErrorTable.of("fused attention backward, from forward", "TFLOP/s", rows)
    rows = (
        (_name(op), ahead, op.model_flops / attention_seconds(op, machine) / 1e12)
        for op, ahead, _ in rated
    )
    elsewhere = ErrorTable.of("fused attention forward elsewhere (not fitted)", "TFLOP/s", rows)
    half_length = machine.forward_half_length
    machine = replace(
        machine, backward_flops=ratio * machine.forward_flops, backward_half_length=half_length
    )
    slower = published(f"{ratio} of the forward efficiency, as {both.source}", backward)
    section = _rates(machine, profile, [published(figures.source, forward), slower])
    section["backward_half_length"] = entry(
        half_length,
        f"that of forward kernels, of {figures.source}: none were timed backward over lengths",
    )
    section["valid_shapes"] = _range_entry(timed, figures.source)
    return section, [forward, backward, elsewhere]


def training_attention(figures: TrainingAttentionFigures, profile: HardwareProfile) -> Fitted:
    """The section of published kernels that were timed both ways over lengths.

    Narrow heads decide no rate, only how much slower they are than heads of 128 channels.
    """
    sizes, other = figures.head_sizes, figures.elsewhere
    both = figures.forward, figures.backward
    ways = [_timed(each.points, way) for each, way in zip(both, _WAYS, strict=True)]
    machine, shown = _fit(ways, profile)
    evidence = [
        published(each.source, comparison) for each, comparison in zip(both, shown, strict=True)
    ]
    data = _rates(machine, profile, evidence)
    for way in _WAYS:
        pairs = sizes.pairs(way)
        # The channels that explain the median ratio of narrow to wide heads: a linear equation.
        ratio = median(narrow / wide for _, narrow, wide in pairs)
        slope = ratio / sizes.narrow - 1 / REFERENCE_HEAD_SIZE
        channels = round_significant(max(0.0, (1 - ratio) / slope))
        slowdown = narrow_head_slowdown(sizes.narrow, channels)
        rows = (
            (f"{sizes.narrow} channels, {tokens} tokens", narrow, wide / slowdown)
            for tokens, narrow, wide in pairs
        )
        title = f"fused attention {way} of narrow heads, from wide"
        shown.append(ErrorTable.of(title, "TFLOP/s", rows))
        name = f"{way}_softmax_channels"
        machine = replace(machine, **{name: channels})  # type: ignore[arg-type]
        data[name] = published(sizes.source, shown[-1])(channels)
    if figures.flash_attention_2:
        points = figures.flash_attention_2.points
        ratio = round_significant(median(older / newest for _, older, newest in points))
        rows = ((f"{tokens} tokens", older, ratio * newest) for tokens, older, newest in points)
        shown.append(ErrorTable.of("FlashAttention-2, from the newest kernel", "TFLOP/s", rows))
        evidence_of_older = published(figures.flash_attention_2.source, shown[-1])
        data["flash_attention_2"] = evidence_of_older(ratio)
    seen = {name: list(ends) for name, ends in figures.common_ranges().items()}
    data["valid_shapes"] = entry(
        seen | {"head_size": [sizes.narrow, REFERENCE_HEAD_SIZE]},
        "sizes in the range of the points both forward and backward; head_size: that of the "
        "points of forward_softmax_channels",
    )
    others = [*_timed(other.forward, "forward"), *_timed(other.backward, "backward")]
    return data, [*shown, _times("fused attention elsewhere (not fitted)", machine, others)]


def _timed(points: Sequence[AttentionRate | TrainingRate], way: str) -> Timed:
    ops = [FusedAttention(*point[:3], way == "backward") for point in points]
    return [(op, op.flops / (point[3] * 1e12)) for op, point in zip(ops, points, strict=True)]


def _rates(
    machine: AttentionMachine, profile: HardwareProfile, evidence: Sequence[Evidence]
) -> Data:
    """The entries of rates and half lengths, forward and backward."""
    peak, data = profile.gpu.peak_flops.value, {}
    for way, made in zip(_WAYS, evidence, strict=True):
        efficiency = round_significant(getattr(machine, f"{way}_flops") / peak)
        data[f"{way}_efficiency"] = made(efficiency)
        data[f"{way}_half_length"] = made(getattr(machine, f"{way}_half_length"))
    return data


def _range_entry(timed: Timed, source: str) -> Data:
    sizes = shape_range([op for op, _ in timed], _SIZES)
    return entry(sizes, f"the range of the points of {source}")


def _fit(
    ways: Sequence[Timed], profile: HardwareProfile
) -> tuple[AttentionMachine, list[ErrorTable]]:
    """The machine of forward kernels, and of backward ones if there are any; and its errors.

    Multiprocessors, memory and latency are the profile's. No rate is above its peak.
    """
    peak_flops, shown = profile.gpu.peak_flops.value, []
    machine = AttentionMachine(
        forward_flops=_START * peak_flops,
        forward_half_length=_START_LENGTH,
        backward_flops=_START * peak_flops,
        backward_half_length=_START_LENGTH,
        num_sms=profile.gpu.num_sms.value,
        memory_bytes_per_s=profile.memory_bound.fused_bandwidth.value,
        latency_s=profile.memory_bound.kernel_latency.value,
    )
    for way, timed in zip(_WAYS, ways, strict=False):

        def candidate(
            x: Sequence[float], way: str = way, start: AttentionMachine = machine
        ) -> AttentionMachine:
            rate = min(x[0] * _START * peak_flops, peak_flops)
            length = round_significant(x[1] * _START_LENGTH)
            changes = {f"{way}_flops": rate, f"{way}_half_length": length}
            return replace(start, **changes)  # type: ignore[arg-type]

        machine = minimise(candidate, (1.0, 1.0), timed, attention_seconds)
        shown.append(_times(f"fused attention {way}", machine, timed))
    return machine, shown


def _times(title: str, machine: AttentionMachine, timed: Timed) -> ErrorTable:
    rows = ((_name(op), seconds, attention_seconds(op, machine)) for op, seconds in timed)
    return microseconds(title, rows)


def _name(op: FusedAttention) -> str:
    return f"{op.heads} heads of {op.seq_length} × {op.head_size}"
