"""Trainings that cannot be drawn: too long, with too many failures, or without an end."""

from __future__ import annotations

from simtrain.errors import InputError, Location
from simtrain.studies.goodput.fleet import Fleet
from simtrain.units import DAY_S, format_seconds, four_digits

MOST_DAYS = 36_525
_MOST_EVENTS = 1e7
"""Failures of one training: more take hours to draw."""
_MOST_PER_CHECKPOINT = 8.0
"""Mean failures until a checkpoint can be loaded: with more, hardly any work is ever saved."""


def check_length(fleet: Fleet, work_s: float, limit_s: float) -> None:
    """Refuse trainings that take more than a century, have too many failures, or never end (E886).

    Args:
        fleet: the machines.
        work_s, limit_s: when the training ends, as for `draw_training`.
    """
    ends_s = min(work_s, limit_s)
    if ends_s > MOST_DAYS * DAY_S:
        message = f"the training takes {four_digits(ends_s / DAY_S)} days without failures"
        fix = f"write fewer tokens, or more GPUs, for at most {MOST_DAYS:,} days"
        raise InputError.of("E886", message, Location("--tokens"), fix)
    each, per_s = fleet.checkpoint, fleet.failures_per_s
    per_s += fleet.slowness.per_s if fleet.slowness else 0.0
    fix = "set lower rates: hardware.reliability.gpu.per_gpu_day and the like"
    if per_s * ends_s > _MOST_EVENTS:
        message = f"the training has {per_s * ends_s:.2g} failures, more than {_MOST_EVENTS:.0e}"
        raise InputError.of("E886", message, fix=fix)
    saved_s = each.interval_s + each.blocking_s + each.write_s
    if fleet.reconfiguration_s is None and per_s * saved_s > _MOST_PER_CHECKPOINT:
        between, until = format_seconds(1 / per_s), format_seconds(saved_s)
        message = f"something fails every {between}, and a checkpoint can be loaded after {until}"
        fix = f"write a shorter --interval, or {fix}"
        raise InputError.of("E886", message, fix=fix, reason="the training would hardly ever end")
