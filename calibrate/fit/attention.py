"""Fits fused attention to records of it, once everything else of a profile is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calibrate.fit.attention_model import (
    attention_entries,
    fit_attention,
    starting_machine,
    times,
)
from calibrate.fit.checks import require
from calibrate.fit.from_figures import Fit
from calibrate.records.schema import AttentionRecord, Header
from simtrain.errors import InputError, Problem
from simtrain.workload.work import FusedAttention

_KERNELS = 4
"""Shapes that two numbers are fitted on, forward and backward."""


def with_attention(
    fit: Fit, header: Header, records: Sequence[AttentionRecord], datasheet_flops: float | None
) -> Fit:
    """The fit with a section `fused_attention`; without records of it, as it was.

    Raises:
        InputError: E720, too few shapes; E721, one ran above the datasheet's peak.
    """
    if not records:
        return fit
    require("shapes of fused attention", len(records), _KERNELS, "kernels")
    forward = [(_op(record, is_backward=False), record.forward.median_s) for record in records]
    backward = [(_op(record, is_backward=True), record.backward.median_s) for record in records]
    if datasheet_flops is not None:
        _check_possible([*forward, *backward], datasheet_flops)
    profile = fit.profile
    peak = profile.gpu.peak_flops.value
    machine = starting_machine(profile)
    for timed in (forward, backward):
        machine = fit_attention(timed, machine, peak)
    shown = (
        times("fused attention forward", machine, forward),
        times("fused attention backward", machine, backward),
    )
    torch = header.software.get("torch", "unknown")
    where = f"measured on {header.device}, {header.date[:10]}, torch {torch}"
    source = f"{where}, {len(records)} points: fused attention"
    section = attention_entries(
        machine,
        peak,
        [op for op, _ in forward],
        forward=(f"{source} forward", shown[0].summary()),
        backward=(f"{source} backward", shown[1].summary()),
    )
    data = fit.data | {"fused_attention": section}
    return replace(fit, data=data, residuals=(*fit.residuals, *shown))


def _op(record: AttentionRecord, *, is_backward: bool) -> FusedAttention:
    return FusedAttention(record.heads, record.seq_length, record.head_size, is_backward)


def _check_possible(timed: Sequence[tuple[FusedAttention, float]], peak_flops: float) -> None:
    fastest, seconds = max(timed, key=lambda pair: pair[0].flops / pair[1])
    rate = fastest.flops / seconds
    if rate <= peak_flops:
        return
    shape = f"{fastest.heads} heads of {fastest.seq_length} × {fastest.head_size}"
    message = f"fused attention of {shape} ran at {rate / 1e12:.4g} TFLOP/s"
    reason = f"the datasheet's peak is {peak_flops / 1e12:.4g} TFLOP/s"
    fix = "delete its line; python -m calibrate measure in the same folder measures it again"
    raise InputError([Problem("E721", message, None, reason, fix)])
