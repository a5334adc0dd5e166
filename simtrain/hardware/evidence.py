"""What predictions with a hardware profile rest on: measured iterations, fits, or datasheets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.contradictions import SET_IN_SCENARIO
from simtrain.hardware.entries import entries_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.validated_on import (
    MeasuredRuns,
    RunKind,
    ValidatedOn,
    differences,
    error_text,
    validated_on,
)

_OF_OTHER_QUESTIONS = "reliability.", "variation."
_WITHOUT_SECONDS = (
    *("running_costs.", *_OF_OTHER_QUESTIONS, "cluster.num_nodes", "gpu.memory_capacity"),
)
"""Entries that no duration depends on: another price or memory leaves the evidence as it is."""
_COMPARED = "compared with measured iterations"


class EvidenceLevel(Enum):
    """How strong the evidence for a profile is, from the weakest to the strongest.

    DATASHEET: no entry was fitted to a measurement.
    UNCERTAIN: sources contradict each other, or important entries are those of another machine, as
        the profile's `doubt` says.
    FITTED: fitted to kernels and collectives; no iteration was compared.
    JUDGED: predictions were compared with measured iterations; of a scenario, with some like it.
    """

    DATASHEET = "datasheet"
    UNCERTAIN = "uncertain"
    FITTED = "fitted on kernels"
    JUDGED = "judged"


@dataclass(frozen=True, slots=True)
class Evidence(PlainData):
    """The evidence for a profile's predicted times.

    Args:
        cluster: name or path of the profile.
        level: its strength.
        num_runs: measured iterations with which predictions were compared; of a scenario, those
            like it.
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
    def is_weak(self) -> bool:
        """Whether it is too weak to be said among details only: datasheets, or contradictions."""
        return self.level in (EvidenceLevel.DATASHEET, EvidenceLevel.UNCERTAIN)

    @property
    def sentence(self) -> str:
        """The line shown below predicted times."""
        return f"Evidence for {self.cluster}: {self.text}."

    def is_weaker_than(self, other: Evidence) -> bool:
        """Whether the other evidence is stronger."""
        levels = [*EvidenceLevel]
        return levels.index(self.level) < levels.index(other.level)


def changed_entries(profile: HardwareProfile) -> list[str]:
    """Return the entries that a scenario changes and durations depend on."""
    return [
        name
        for name, entry in entries_of(profile)
        if entry.source == SET_IN_SCENARIO and not name.startswith(_WITHOUT_SECONDS)
    ]


def is_doubtful(profile: HardwareProfile, cluster: str) -> bool:
    """Whether a profile rests on datasheets, or on sources that contradict each other.

    Raises:
        InputError: there is no such profile, or its file of errors is bad.
    """
    errors = validated_on(cluster)
    return not _num_fitted(profile) or bool(errors and errors.doubt)


def evidence_of(profile: HardwareProfile, cluster: str, kind: RunKind | None = None) -> Evidence:
    """Collect the evidence for a profile from its entries and its file of errors.

    Args:
        profile: the profile, with a scenario's overrides applied.
        cluster: its name or path.
        kind: the kind of a scenario: only runs like it judge it; by default all runs do.

    Raises:
        InputError: as `is_doubtful`.
    """
    changed, errors = changed_entries(profile), validated_on(cluster)
    runs = errors.measured_runs if errors and not changed else []
    like = [group for group in runs if kind is None or not differences(kind, group, cluster)]
    num_runs = sum(group.num_runs for group in like)
    if not _num_fitted(profile):
        level = EvidenceLevel.DATASHEET
    elif is_doubtful(profile, cluster):
        level = EvidenceLevel.UNCERTAIN
    else:
        level = EvidenceLevel.JUDGED if num_runs else EvidenceLevel.FITTED
    is_judged = bool(num_runs)
    words = [*_of_profile(level, profile, errors, is_judged=is_judged)]
    if like or (runs and kind is None):
        what = "measured iterations" + " like this one" * (kind is not None)
        words.append(f"judged on {num_runs:,} {what}, {_errors_in_words(like)}")
    elif runs and kind:
        fewest = min(len(differences(kind, group, cluster)) for group in runs)
        nearest = [group for group in runs if len(differences(kind, group, cluster)) == fewest]
        number = sum(group.num_runs for group in nearest)
        others = f"{number:,} others were, {_errors_in_words(nearest)}"
        words.append(f"none like this one was compared; {others}")
    elif changed:
        also = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
        words.append(f"not {_COMPARED} with the scenario's hardware.{changed[0]}{also}")
    else:
        words.append(f"not yet {_COMPARED}")
    return Evidence(cluster, level, num_runs, "; ".join(words))


def _num_fitted(profile: HardwareProfile) -> int:
    """Return the number of fitted entries; 0 if the profile is not calibrated."""
    fitted = sum(entry.fitted_on is not None for _, entry in entries_of(profile))
    return fitted if profile.calibrated else 0


def _of_profile(
    level: EvidenceLevel, profile: HardwareProfile, errors: ValidatedOn | None, *, is_judged: bool
) -> Iterator[str]:
    """Say what the numbers of a profile are, unless runs like the scenario judge it."""
    if level is EvidenceLevel.DATASHEET:
        numbers = "not calibrated, its numbers are a datasheet's"
        is_bound = profile.lower_bound and not changed_entries(profile)
        yield f"{numbers} or the best possible ones: times are lower bounds" * is_bound or numbers
    elif level is EvidenceLevel.UNCERTAIN and errors:
        yield f"uncertain, {errors.doubt}"
    elif not is_judged:
        names = [name for name, _ in entries_of(profile)]
        number = sum(not name.startswith(_OF_OTHER_QUESTIONS) for name in names)
        yield f"fitted on kernels and collectives ({_num_fitted(profile)} of {number} entries)"


def _errors_in_words(groups: Sequence[MeasuredRuns]) -> str:
    errors = [error for group in groups for error in group.errors]
    mean = math.fsum(map(abs, errors)) / len(errors)
    return f"mean |error| {error_text(mean)}, worst {error_text(max(errors, key=abs))}"


def sentences_of(evidence: Iterable[Evidence]) -> list[str]:
    """Return a line for each profile, in order and without repetitions."""
    return list(dict.fromkeys(profile_evidence.sentence for profile_evidence in evidence))
