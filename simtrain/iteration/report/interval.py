"""The interval of a scenario's predicted time."""

from __future__ import annotations

from simtrain.hardware.evidence import changed_entries
from simtrain.hardware.interval import Interval, RunKind, interval_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario


def predicted_interval(scenario: Scenario, profile: HardwareProfile, time_s: float) -> Interval:
    """Return where the measured time lies, from how far off predictions of its kind were."""
    kind = RunKind(
        scenario.cluster,
        scenario.software.stack,
        scenario.precision.compute,
        scenario.model.experts is not None,
        is_changed=bool(changed_entries(profile)),
    )
    return interval_of(time_s, kind)
