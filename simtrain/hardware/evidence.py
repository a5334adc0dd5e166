"""What predictions with a profile rest on: measured iterations, fits, or datasheets.

Errors of predicted iteration times against measured ones are in the folder `validated_on` beside
the profile, in a file of the profile's name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simtrain.base.entry import NonNegative, Strict, Text
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.resources import find_profile
from simtrain.base.strict_yaml import load_document, validate
from simtrain.base.values import dataclass
from simtrain.hardware.entries import entries_of
from simtrain.hardware.profile import SET_IN_SCENARIO, HardwareProfile
from simtrain.scenario.software import family_of

_OF_OTHER_QUESTIONS = "running_costs.", "reliability.", "variation."
_WITHOUT_SECONDS = (*_OF_OTHER_QUESTIONS, "cluster.num_nodes", "gpu.memory_capacity")
"""Entries that no duration depends on: another price or memory leaves the evidence as it is."""
_COMPARED = "compared with measured iterations"

EvidenceLevel = Literal["datasheet", "uncertain", "fitted on kernels", "judged"]
"""How strong the evidence for a profile is.

datasheet: no entry was fitted to a measurement. uncertain: sources contradict each other, or
important entries are those of another machine (the profile's `doubt`). fitted on kernels: no
iteration was compared. judged: predictions were compared with measured iterations; of a scenario,
with some like it.
"""


@dataclass(frozen=True, slots=True)
class Evidence(PlainData):
    """The evidence for a profile's predicted times.

    Args:
        cluster: name or path of the profile.
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
        return self.num_runs > 0

    @property
    def is_weak(self) -> bool:
        return self.level in ("datasheet", "uncertain")

    @property
    def sentence(self) -> str:
        return f"Evidence for {self.cluster}: {self.text}."


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
    differ = [differences(kind, group, cluster) if kind else [] for group in runs]
    fewest = min(map(len, differ), default=0)
    nearest = [group for group, others in zip(runs, differ, strict=True) if len(others) == fewest]
    num_runs = sum(group.num_runs for group in nearest)
    num_like = 0 if fewest else num_runs
    ratios = [error for group in nearest for error in group.errors]
    level: EvidenceLevel = "judged" if num_like else "fitted on kernels"
    words = []
    if not _num_fitted(profile):
        level = "datasheet"
        is_bound = profile.lower_bound and not changed
        bound = " or the best possible ones: times are lower bounds" if is_bound else ""
        words.append(f"not calibrated, its numbers are a datasheet's{bound}")
    elif errors and errors.doubt:
        level = "uncertain"
        words.append(f"uncertain, {errors.doubt}")
    elif not num_like:
        names = [name for name, _ in entries_of(profile)]
        number = sum(not name.startswith(_OF_OTHER_QUESTIONS) for name in names)
        fitted = f"{_num_fitted(profile)} of {number} entries"
        words.append(f"fitted on kernels and collectives ({fitted})")
    if ratios:
        mean = math.fsum(map(abs, ratios)) / len(ratios)
        how = f"mean |error| {error_text(mean)}, worst {error_text(max(ratios, key=abs))}"
        like = " like this one" if kind else ""
        if num_like:
            words.append(f"judged on {num_runs:,} measured iterations{like}, {how}")
        else:
            words.append(f"none like this one was compared; {num_runs:,} others were, {how}")
    elif changed:
        also = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
        words.append(f"not {_COMPARED} with the scenario's hardware.{changed[0]}{also}")
    else:
        words.append(f"not yet {_COMPARED}")
    return Evidence(cluster, level, num_like, "; ".join(words))


def _num_fitted(profile: HardwareProfile) -> int:
    fitted = sum(entry.fitted_on is not None for _, entry in entries_of(profile))
    return fitted if profile.calibrated else 0


def sentences_of(evidence: Iterable[Evidence]) -> list[str]:
    """Return a line for each profile, in order and without repetitions."""
    return [*dict.fromkeys(each.sentence for each in evidence)]


ErrorOfRun = Annotated[float, Field(gt=-1)]
"""Predicted / measured - 1: a predicted time is above 0."""
DataType = Literal["bf16", "fp16", "fp32", "fp8", "fp4"]
Nodes = Literal["one", "several"]


class MeasuredRuns(Strict):
    """Measured iterations, and the errors of their predicted times (predicted / measured - 1).

    Args:
        runs: what was measured.
        errors: the error of each run, below zero if the prediction is too fast.
        extrapolated: share of their kernel time that is for shapes outside the range that the
            profile was fitted on, on average.
        software: software stack of the predictions.
        data_types: data types of their matrix products; bf16 by default.
        has_experts: whether their models have experts.
        is_hybrid: whether their models have a pattern of layers (Mamba-2, attention, MLP).
        nodes: whether they ran on one node or on several; None for both.
        shapes: what tells how alike one's own runs are (`likeness.shape_of`), in their order.
        seen: `blind` if nothing was chosen after looking at the runs; `seen` if they drew attention
            to something that has a source of its own; `fitted` if a number was fitted to them.
        remark: what may have made these errors smaller or larger than those of other runs.
        source: where the measurements and all their errors are.
    """

    runs: Text
    errors: list[ErrorOfRun] = Field(min_length=1)
    extrapolated: NonNegative = Field(default=0.0, le=1)
    software: Text
    data_types: list[DataType] = Field(default=["bf16"], min_length=1)
    has_experts: bool = False
    is_hybrid: bool = False
    nodes: Nodes | None = None
    shapes: list[list[float]] | None = None
    seen: Literal["blind", "seen", "fitted"] = "seen"
    remark: Text
    source: Text

    @property
    def num_runs(self) -> int:
        return len(self.errors)

    @property
    def mean_error(self) -> float:
        return math.fsum(map(abs, self.errors)) / len(self.errors)

    @property
    def worst_error(self) -> float:
        return max(self.errors, key=abs)

    @property
    def log_ratios(self) -> list[float]:
        return [math.log1p(error) for error in self.errors]


class ValidatedOn(Strict):
    """The measured iterations with which a profile's predictions were compared, perhaps none.

    Args:
        version: version of this schema.
        summary: what was measured, or what the profile rests on instead.
        doubt: how sources of the profile contradict each other, or which entries are another
            machine's, as half a sentence; None if they agree. Reports call a profile with a doubt
            uncertain.
        measured_runs: the iterations and their errors.
        usual_software: the stack of runs on the machine that name none; by default that of the
            first of `measured_runs`, or the newest Megatron-Core.
    """

    version: Literal[2]
    summary: Text
    doubt: Text | None = None
    measured_runs: list[MeasuredRuns]
    usual_software: Text | None = None


def validated_on(cluster: str) -> ValidatedOn | None:
    """Load the errors of predictions with a profile; None if no file has any.

    Args:
        cluster: a profile's name or path.

    Raises:
        InputError: there is no such profile, or the file of errors is bad.
    """
    profile = find_profile(cluster)
    file = profile.parent / "validated_on" / f"{profile.stem}.yaml"
    return _load(file, file.stat().st_mtime_ns) if file.is_file() else None


@functools.lru_cache(maxsize=64)
def _load(file: Path, version: int) -> ValidatedOn:
    document = load_document(file)
    return validate(ValidatedOn, document.data, document.positions)


def usual_stack(cluster: str) -> str:
    """Return the software stack of runs on a machine that name none."""
    errors = validated_on(cluster)
    if errors and errors.usual_software:
        return errors.usual_software
    return errors.measured_runs[0].software if errors and errors.measured_runs else "megatron_core"


@dataclass(frozen=True, slots=True)
class RunKind:
    """A kind of runs: those whose predictions are about as far off.

    Args:
        data_type: of matrix products.
        is_hybrid: whether the model has a pattern of layers.
        is_changed: whether the scenario changes entries of the profile, which makes it another one.
        is_doubtful: whether the profile rests on datasheets or on contradicting sources.
        is_lower_bound: whether the profile has best possible values, so that no run is faster.
        stated_error: relative error below which nine of ten times stay, as the profile's own fit
            states; 0 if it states none.
    """

    cluster: str
    software: str
    data_type: DataType
    has_experts: bool
    nodes: Nodes = "several"
    is_changed: bool = False
    is_doubtful: bool = False
    is_hybrid: bool = False
    is_lower_bound: bool = False
    stated_error: float = 0.0


RESPECTS = ("machine", "software", "data_type", "model")
"""The respects in which classes of runs differ."""
Traits = Mapping[str, str]
"""What a class of runs is in each respect."""


def traits_of(kind: RunKind) -> Traits:
    """Return what runs of a kind are in each respect; a changed profile is another machine."""
    machine = f"{kind.cluster}, changed" if kind.is_changed else kind.cluster
    return _traits(machine, kind.software, [kind.data_type], kind)


def traits_of_runs(runs: MeasuredRuns, cluster: str) -> Traits:
    """Return the traits of runs on a machine."""
    return _traits(cluster, runs.software, runs.data_types, runs)


def _traits(
    machine: str, software: str, types: Iterable[DataType], of: RunKind | MeasuredRuns
) -> Traits:
    # 16-bit types are as fast as each other, and variations of a stack run its kernels.
    names = {"16 bits" if each in ("bf16", "fp16") else each for each in types}
    layers = "hybrid" if of.is_hybrid else "transformer"
    model = f"{layers} with experts" if of.has_experts else f"dense {layers}"
    values = (machine, family_of(software), " and ".join(sorted(names)), model)
    return dict(zip(RESPECTS, values, strict=True))


def differences(kind: RunKind, runs: MeasuredRuns, cluster: str) -> list[str]:
    """Return the respects in which measured runs on a machine differ from a kind."""
    ours, theirs = traits_of(kind), traits_of_runs(runs, cluster)
    differ = [respect for respect in RESPECTS if ours[respect] != theirs[respect]]
    return [*differ, *["nodes"] * (runs.nodes not in (None, kind.nodes))]


def error_text(error: float) -> str:
    """Format an error with two digits, as precisely as errors were published: "2.0%", "-49%"."""
    return f"{100 * error:#.2g}".rstrip(".") + "%"
