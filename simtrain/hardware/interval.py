"""Where the measured time of a prediction lies, from how far off predictions of its kind were.

The errors are those of measured runs by machine, software stack, data type and kind of model, which
`hw_profiles/validated_on` lists. Where no runs of the same kind were compared, the nearest kind
counts, and each respect in which it differs makes the interval twice as wide. Another machine
counts twice if its profile rests on datasheets or on sources that contradict each other. Kernel
time that is extrapolated counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.resources import list_profiles
from simtrain.hardware.validated_on import DataType, MeasuredRuns, Nodes, Quantiles, validated_on
from simtrain.units import format_seconds

_FEW = 20
_SIXTEEN_BITS = frozenset(("bf16", "fp16"))
_LEAST_ERROR = -0.9
"""A run takes at most ten times as long as predicted, however wide the interval is."""
_LOWER, _UPPER = ("p5", "p25"), ("p75", "p95")


@dataclass(frozen=True, slots=True)
class RunKind:
    """A kind of runs: those whose predictions are about as far off.

    Args:
        cluster: the hardware profile.
        software: the software stack.
        data_type: the data type of matrix products.
        has_experts: whether the model has experts.
        is_hybrid: whether the model has a pattern of layers.
        nodes: whether it runs on one node or on several.
        is_changed: whether the scenario changes entries of the profile, which makes it another one.
        is_doubtful: whether the profile rests on datasheets or on contradicting sources.
    """

    cluster: str
    software: str
    data_type: DataType
    has_experts: bool
    nodes: Nodes = "several"
    is_changed: bool = False
    is_doubtful: bool = False
    is_hybrid: bool = False

    def __str__(self) -> str:
        changed = " as changed" if self.is_changed else ""
        machine, model = f"{Path(self.cluster).stem}{changed}", _model(self)
        return f"{self.software} on {machine}, {self.data_type}, {model}, {_nodes(self.nodes)}"


@dataclass(frozen=True, slots=True)
class Interval(PlainData):
    """Where the measured time lies: from p5_s to p95_s in 90 % of runs, p25_s to p75_s in 50 %.

    Args:
        p5_s, p25_s, p75_s, p95_s: times.
        least_difference: the smallest difference of two predictions of this kind that can be told,
            as a share: the errors of 90 % of pairs of runs differ by less.
        basis: the runs that it follows from, as a clause.
    """

    json_fields: ClassVar = keys("p5=p5_s p25=p25_s p75=p75_s p95=p95_s least_difference basis")

    p5_s: float
    p25_s: float
    p75_s: float
    p95_s: float
    least_difference: float
    basis: str

    @property
    def ends(self) -> str:
        """The ends of the 90 % interval in words."""
        return f"{format_seconds(self.p5_s)} to {format_seconds(self.p95_s)}"

    @property
    def half_ends(self) -> str:
        """The ends of the 50 % interval in words."""
        return f"{format_seconds(self.p25_s)} to {format_seconds(self.p75_s)}"

    @property
    def sentence(self) -> str:
        """The 90 % interval and its basis, to follow predicted times."""
        return f"90 % interval of the iteration time: {self.ends} ({self.basis})."

    def has(self, time_s: float) -> bool:
        """Whether the 90 % interval contains a time."""
        return self.p5_s <= time_s <= self.p95_s

    def has_in_half(self, time_s: float) -> bool:
        """Whether the 50 % interval contains a time."""
        return self.p25_s <= time_s <= self.p75_s


@dataclass(frozen=True, slots=True)
class ErrorRange:
    """How far off predictions of a kind are expected to be (predicted / measured - 1).

    Args:
        p5, p25, p75, p95: quantiles of the errors.
        least_difference: as in `Interval`.
        basis: the runs that they follow from, as a clause.
    """

    p5: float
    p25: float
    p75: float
    p95: float
    least_difference: float
    basis: str

    def around(self, time_s: float, extrapolated: float = 0.0) -> Interval:
        """Return the interval of a predicted time.

        Args:
            time_s: the predicted time.
            extrapolated: share of its kernel time for shapes outside the range that the profile was
                fitted on.
        """
        width = 1 + extrapolated
        errors = self.p5, self.p25, self.p75, self.p95
        p5, p25, p75, p95 = (max(width * error, _LEAST_ERROR) for error in errors)
        also = f"; {extrapolated:.0%} of kernel time is extrapolated" * (extrapolated >= 0.005)
        return Interval(
            time_s / (1 + p95),
            time_s / (1 + p75),
            time_s / (1 + p25),
            time_s / (1 + p5),
            width * self.least_difference,
            self.basis + also,
        )


def errors_of(kind: RunKind) -> ErrorRange:
    """Return how far off predictions of a kind are expected to be.

    Raises:
        InputError: there is no such profile, or a file of errors is bad.
    """
    groups = _groups(kind)
    least = min(group.distance for group in groups)
    nearest = [group for group in groups if group.distance == least]
    width = 2 ** nearest[0].differences
    # The widest of equally near groups counts.
    p5, p25 = (width * min(getattr(group.quantiles, name) for group in nearest) for name in _LOWER)
    p75, p95 = (width * max(getattr(group.quantiles, name) for group in nearest) for name in _UPPER)
    difference = width * max(group.least_difference for group in nearest)
    return ErrorRange(p5, p25, p75, p95, difference, _basis(nearest, kind))


@dataclass(frozen=True, slots=True)
class _Group:
    """Measured runs, compared with a kind.

    Args:
        runs: the runs.
        cluster: their machine.
        is_other_software: whether their software is none of the stacks.
        differences: in how many other respects they differ from the kind.
    """

    runs: MeasuredRuns
    cluster: str
    is_other_software: bool
    differences: int

    @property
    def distance(self) -> tuple[bool, int, bool]:
        """How little the runs say about the kind, to be compared with others."""
        return self.is_other_software, self.differences, self.runs.num_runs < _FEW

    @property
    def quantiles(self) -> Quantiles:
        """Quantiles of the errors; of few runs, twice their mean and their worst |error|."""
        if self.runs.quantiles and self.runs.num_runs >= _FEW:
            return self.runs.quantiles
        half, whole = 2 * self.runs.mean_error, 2 * abs(self.runs.worst_error)
        return Quantiles(
            p5=max(-whole, _LEAST_ERROR), p25=max(-half, _LEAST_ERROR), p75=half, p95=whole
        )

    @property
    def least_difference(self) -> float:
        """What 90 % of pairs' errors are below; without pairs, half of the errors' range."""
        if self.runs.pairs:
            return self.runs.pairs.p90
        return (self.quantiles.p95 - self.quantiles.p5) / 2


def _groups(kind: RunKind) -> list[_Group]:
    """Return all measured runs that may say something about a kind."""
    groups = [*_groups_on(kind.cluster, kind)]
    # Runs that differ in nothing are nearest. Reading the files of other machines takes longer.
    if all(any(group.distance) for group in groups):
        others = (name for name in list_profiles() if name != kind.cluster)
        groups += [group for name in others for group in _groups_on(name, kind)]
    return groups


def _groups_on(cluster: str, kind: RunKind) -> Iterator[_Group]:
    """Yield the measured runs of a machine that may say something about a kind."""
    errors = validated_on(cluster)
    if errors is None:
        return
    for runs in errors.measured_runs:
        if runs.software == kind.software:
            yield _Group(runs, cluster, False, _differences(runs, cluster, kind))
    if errors.other_software:
        others = errors.other_software
        yield _Group(others, cluster, True, _differences(others, cluster, kind))


def _differences(runs: MeasuredRuns, cluster: str, kind: RunKind) -> int:
    """Count machine, data type, kind of model and nodes if they differ; 16-bit types are alike."""
    types = {*runs.data_types}
    same_type = kind.data_type in types or (types | {kind.data_type}) <= _SIXTEEN_BITS
    same_machine = cluster == kind.cluster and not kind.is_changed
    other_machine = (not same_machine) * (1 + kind.is_doubtful)
    other_model = (runs.has_experts != kind.has_experts) + (runs.is_hybrid != kind.is_hybrid)
    return other_machine + (not same_type) + other_model + (runs.nodes not in (None, kind.nodes))


def _basis(groups: Sequence[_Group], kind: RunKind) -> str:
    """Say which runs the interval follows from, and how much wider it is than theirs."""
    num_runs = sum(group.runs.num_runs for group in groups)
    machines = " and ".join(dict.fromkeys(Path(group.cluster).stem for group in groups))
    if groups[0].distance[:2] == (False, 0):
        return f"{num_runs} measured runs of {kind}"
    software = "other software" if groups[0].is_other_software else kind.software
    types = dict.fromkeys(name for group in groups for name in group.runs.data_types)
    models = dict.fromkeys(_model(group.runs) for group in groups)
    width = 2 ** groups[0].differences
    wider = f", {width} times as wide" if width > 1 else ""
    nodes = dict.fromkeys(_nodes(group.runs.nodes) for group in groups if group.runs.nodes)
    which = ", ".join([*types, *models, *nodes])
    return (
        f"no run of {kind} was compared; as {num_runs} of {software} on {machines} ({which}){wider}"
    )


def _nodes(nodes: Nodes) -> str:
    return "one node" if nodes == "one" else "several nodes"


def _model(runs: RunKind | MeasuredRuns) -> str:
    model = "experts" if runs.has_experts else "dense"
    return model if not runs.is_hybrid else "hybrid, experts" if runs.has_experts else "hybrid"
