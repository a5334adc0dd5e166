"""What a figure shows, in its title and in its footer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from simtrain.base.resources import provenance
from simtrain.base.strict_yaml import as_scalar
from simtrain.base.version import VERSION
from simtrain.iteration.report.result import Result

_DIGEST_DIGITS = 8
_MOST_CHANGES = 2
"""Changed values that a footer lists; more would not fit its line."""


def subject_of(result: Result) -> str:
    """Return how titles name the scenario of a result."""
    return f"scenario {result.scenario.name}" if result.scenario.name else "the scenario"


def with_changes(subject: str, changes: Sequence[str]) -> str:
    """Add changed values to the subject of a footer: "175b with recompute=full and 2 more changes".

    The line has room for two changes; the others are counted.
    """
    if not changes:
        return subject
    num_more = len(changes) - _MOST_CHANGES
    more = f" and {num_more} more change{'s' * (num_more > 1)}" if num_more > 0 else ""
    return f"{subject} with {', '.join(changes[:_MOST_CHANGES])}{more}"


def footer(subject: str, profiles: Mapping[str, str], version: str = VERSION) -> str:
    """Return the footer: what a figure shows, and which profile and version computed it.

    Args:
        subject: the scenario, sweep or table.
        profiles: SHA-256 of each hardware profile's file, by name.
        version: the version of simtrain that computed the numbers.
    """
    named = [f"{name} (SHA-256 {sha[:_DIGEST_DIGITS]})" for name, sha in profiles.items()]
    profile = [f"profile {', '.join(named)}"] if named else []
    return " · ".join([subject, *profile, f"simtrain {version}"])


def footer_of(subject: str, cluster: str) -> str:
    """Return the footer of results on one cluster, a profile's name or path."""
    made = provenance(cluster)
    return footer(subject, {Path(cluster).name: made["profile_sha256"]})


def footer_of_result(result: Result) -> str:
    """Return the footer of a result, with the values that differ from the scenario's file."""
    values = result.scenario.changed_values
    changes = [f"{name}={as_scalar(value)}" for name, value in values.items()]
    return footer_of(with_changes(subject_of(result), changes), result.scenario.cluster)
