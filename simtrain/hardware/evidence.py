"""What predictions with a hardware profile rest on: measured iterations, fits, or datasheets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.contradictions import SET_IN_SCENARIO
from simtrain.hardware.entries import entries_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.validated_on import MeasuredRuns, ValidatedOn, error_text, validated_on

_WITHOUT_SECONDS = ("running_costs.", "cluster.num_nodes")
"""Entries that no duration depends on: another price leaves the evidence as it is."""
_NOT_COMPARED = "compared with measured iterations"


class EvidenceLevel(Enum):
    """How strong the evidence for a profile is, from the weakest to the strongest.

    DATASHEET: no entry was fitted to a measurement.
    UNCERTAIN: sources contradict each other, or important entries are those of another machine, as
        the profile's `doubt` says.
    FITTED: fitted to kernels and collectives; no iteration was compared.
    JUDGED: predictions were compared with measured iterations.
    """

    DATASHEET = "datasheet"
    UNCERTAIN = "uncertain"
    FITTED = "fitted on kernels"
    JUDGED = "judged"


_STRENGTHS = list(EvidenceLevel)


@dataclass(frozen=True, slots=True)
class Evidence(PlainData):
    """The evidence for a profile's predicted times.

    Args:
        cluster: name or path of the profile.
        level: its strength.
        num_runs: measured iterations with which predictions were compared.
        text: the evidence in words, to follow the profile's name.
    """

    json_fields: ClassVar = keys("level num_runs text")

    cluster: str
    level: EvidenceLevel
    num_runs: int
    text: str

    @property
    def judged(self) -> bool:
        """Whether predictions were compared with measured iterations."""
        return self.num_runs > 0

    @property
    def sentence(self) -> str:
        """The line shown below predicted times."""
        return f"Evidence for {self.cluster}: {self.text}."

    def is_weaker_than(self, other: Evidence) -> bool:
        """Whether the other evidence is stronger."""
        return _STRENGTHS.index(self.level) < _STRENGTHS.index(other.level)


def changed_entries(profile: HardwareProfile) -> list[str]:
    """Return the entries that a scenario changes and durations depend on."""
    return [
        name
        for name, entry in entries_of(profile)
        if entry.source == SET_IN_SCENARIO and not name.startswith(_WITHOUT_SECONDS)
    ]


def evidence_of(profile: HardwareProfile, cluster: str, software: str | None = None) -> Evidence:
    """Collect the evidence for a profile from its entries and its file of errors.

    Args:
        profile: the profile, with a scenario's overrides applied.
        cluster: its name or path.
        software: the stack whose measured iterations count, if there are any; by default all.

    Raises:
        InputError: there is no such profile, or its file of errors is bad.
    """
    entries, changed = dict(entries_of(profile)), changed_entries(profile)
    num_fitted = sum(entry.fitted_on is not None for entry in entries.values())
    errors = validated_on(cluster)
    groups = errors.measured_runs if errors and not changed else []
    groups = [group for group in groups if group.software == software] or groups
    num_runs = sum(group.num_runs for group in groups)
    if profile.calibrated and errors and errors.doubt:
        level = EvidenceLevel.UNCERTAIN
    elif not profile.calibrated or not num_fitted:
        level = EvidenceLevel.DATASHEET
    else:
        level = EvidenceLevel.JUDGED if num_runs else EvidenceLevel.FITTED
    words = "; ".join(_words(level, errors, groups, f"{num_fitted} of {len(entries)}", changed))
    return Evidence(cluster, level, num_runs, words)


def _words(
    level: EvidenceLevel,
    errors: ValidatedOn | None,
    groups: Sequence[MeasuredRuns],
    num_fitted: str,
    changed: list[str],
) -> Iterator[str]:
    """Yield the statements of a text of evidence."""
    num_runs = sum(group.num_runs for group in groups)
    if level is EvidenceLevel.DATASHEET:
        yield "not calibrated, its numbers are a datasheet's"
    elif level is EvidenceLevel.UNCERTAIN and errors:
        yield f"uncertain, {errors.doubt}"
    elif not num_runs:
        yield f"fitted on kernels and collectives ({num_fitted} entries)"
    if num_runs:
        mean = sum(group.num_runs * group.mean_error for group in groups) / num_runs
        worst = max((group.worst_error for group in groups), key=abs)
        errors_in_words = f"mean |error| {error_text(mean)}, worst {error_text(worst)}"
        yield f"judged on {num_runs} measured iterations, {errors_in_words}"
    elif changed:
        others = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
        yield f"not {_NOT_COMPARED} with the scenario's hardware.{changed[0]}{others}"
    else:
        yield f"not yet {_NOT_COMPARED}"


def sentences_of(evidence: Iterable[Evidence]) -> list[str]:
    """Return a line for each profile, in order and without repetitions."""
    return list(dict.fromkeys(profile_evidence.sentence for profile_evidence in evidence))
