"""The interval of a scenario's predicted time, and the evidence for it."""

from __future__ import annotations

from simtrain.hardware.evidence import Evidence, RunKind, changed_entries, evidence_of, is_doubtful
from simtrain.hardware.interval import Interval, errors_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario


def predicted_interval(
    scenario: Scenario,
    profile: HardwareProfile,
    time_s: float,
    extrapolated: float = 0.0,
    least_s: float = 0.0,
    host_bound: float = 0.0,
) -> Interval:
    """Return where the measured time lies, from how far off predictions of its kind were.

    Args:
        scenario: the scenario.
        profile: its hardware profile, with the scenario's overrides.
        time_s: its predicted iteration time.
        extrapolated: share of its kernel time for shapes outside the fitted range.
        least_s: no iteration is shorter (`least_time.least_seconds`).
        host_bound: share of the passes' time in which GPUs wait for the host.
    """
    expected = errors_of(run_kind(scenario, profile))
    return expected.around(time_s, extrapolated, least_s, host_bound)


def evidence_for(scenario: Scenario, profile: HardwareProfile) -> Evidence:
    """Return what predictions of a scenario rest on: its profile, and runs like it."""
    return evidence_of(profile, scenario.cluster, run_kind(scenario, profile))


def run_kind(scenario: Scenario, profile: HardwareProfile) -> RunKind:
    """Return the kind of runs that a scenario belongs to."""
    is_changed = bool(changed_entries(profile))
    return RunKind(
        scenario.cluster,
        scenario.software.name,
        scenario.precision.compute,
        scenario.model.experts is not None,
        "one" if scenario.num_gpus <= profile.cluster.gpus_per_node.value else "several",
        is_changed=is_changed,
        is_doubtful=is_doubtful(profile, scenario.cluster),
        is_lower_bound=profile.lower_bound and not is_changed,
        is_hybrid=scenario.model.layer_pattern is not None,
        splits_matrices=scenario.parallelism.matrix_split is not None,
        stated_error=profile.uncertainty.value if profile.uncertainty else 0.0,
    )
