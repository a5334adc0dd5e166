"""All measured runs with which predictions were compared, by machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simtrain.base.resources import list_profiles
from simtrain.hardware.error_model import DATA_TYPE, MACHINE, MODEL, SOFTWARE, JudgedClass, Traits
from simtrain.hardware.run_kind import RunKind, data_types_in_words, model_in_words
from simtrain.hardware.validated_on import MeasuredRuns, validated_on
from simtrain.scenario.software import family_of


@dataclass(frozen=True, slots=True)
class JudgedRuns:
    """Measured runs of one class, and their machine.

    Args:
        runs: the runs and their errors.
        cluster: the hardware profile of their machine.
        is_mixed: whether they are of several frameworks, which are no evidence for any stack.
    """

    runs: MeasuredRuns
    cluster: str
    is_mixed: bool = False

    @property
    def as_class(self) -> JudgedClass:
        """The runs as the model of errors takes them."""
        return JudgedClass(self._traits, self.runs.log_ratios, self.runs.extrapolated)

    @property
    def _traits(self) -> Traits:
        return {
            MACHINE: self.cluster,
            SOFTWARE: f"others on {self.cluster}"
            if self.is_mixed
            else family_of(self.runs.software),
            DATA_TYPE: data_types_in_words(self.runs.data_types),
            MODEL: model_in_words(self.runs.has_experts, self.runs.is_hybrid),
        }

    @property
    def _software(self) -> str:
        return f"others on {self.cluster}" if self.is_mixed else family_of(self.runs.software)


def traits_of(kind: RunKind) -> Traits:
    """Return what runs of a kind are in each respect; a changed profile is another machine."""
    return {
        MACHINE: f"{kind.cluster}, changed" if kind.is_changed else kind.cluster,
        SOFTWARE: family_of(kind.software),
        DATA_TYPE: data_types_in_words([kind.data_type]),
        MODEL: model_in_words(kind.has_experts, kind.is_hybrid),
    }


def judged_runs(clusters: Iterable[str] = ()) -> list[JudgedRuns]:
    """Return all classes of measured runs on some profiles and on the shipped ones.

    Runs that the files of several profiles have, such as a base and what was fitted near it, count
    once, on the first.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    names = dict.fromkeys((*clusters, *list_profiles()))
    groups = [runs for name in names for runs in _judged_on(name)]
    first = {(each.runs.source, *each.runs.errors): each for each in reversed(groups)}
    return [*reversed(first.values())]


def _judged_on(cluster: str) -> Iterator[JudgedRuns]:
    errors = validated_on(cluster)
    if errors is None:
        return
    for runs in errors.measured_runs:
        yield JudgedRuns(runs, cluster)
    if errors.other_software:
        yield JudgedRuns(errors.other_software, cluster, is_mixed=True)
