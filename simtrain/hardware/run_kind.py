"""Kinds of runs, and the respects in which measured runs differ from a kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from simtrain.hardware.validated_on import DataType, MeasuredRuns, Nodes
from simtrain.scenario.software import family_of

_SIXTEEN_BITS = frozenset(("bf16", "fp16"))
_NODES = {"one": "one node", "several": "several nodes"}


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
        is_lower_bound: whether the profile has best possible values, so that no run is faster.
        splits_matrices: whether ranks split matrices in another way than by columns and rows, as no
            judged run does.
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
    splits_matrices: bool = False
    stated_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Respect:
    """A respect in which measured runs differ from a kind, and both values in words."""

    name: str
    of_kind: str
    of_runs: str


def differences(
    kind: RunKind, runs: MeasuredRuns, cluster: str, *, mixed: bool = False
) -> tuple[Respect, ...]:
    """Return the respects in which measured runs differ from a kind.

    Args:
        kind: the kind.
        runs: the measured runs.
        cluster: the machine of the runs.
        mixed: whether the runs are of several frameworks, none of which is the kind's.
    """
    return (
        *_of_machine(kind, cluster),
        *_of_software(kind, runs, mixed),
        *_of_model(kind, runs),
    )


def _of_machine(kind: RunKind, cluster: str) -> Iterator[Respect]:
    if cluster != kind.cluster or kind.is_changed:
        changed = " as changed" if kind.is_changed else ""
        yield Respect("machine", f"{Path(kind.cluster).stem}{changed}", Path(cluster).stem)


def _of_software(kind: RunKind, runs: MeasuredRuns, mixed: bool) -> Iterator[Respect]:
    # Variations of a stack run its kernels.
    if mixed or family_of(runs.software) != family_of(kind.software):
        yield Respect("software", kind.software, "other software" if mixed else runs.software)
    # The 16-bit types are as fast as each other, on the same kernels.
    types = {*runs.data_types}
    if kind.data_type not in types and not types | {kind.data_type} <= _SIXTEEN_BITS:
        yield Respect("data type", kind.data_type, " and ".join(runs.data_types))


def _of_model(kind: RunKind, runs: MeasuredRuns) -> Iterator[Respect]:
    if runs.has_experts != kind.has_experts:
        yield Respect("experts", *(_experts(each.has_experts) for each in (kind, runs)))
    if runs.is_hybrid != kind.is_hybrid:
        yield Respect("kind of layers", *(_layers(each.is_hybrid) for each in (kind, runs)))
    if kind.splits_matrices:
        yield Respect("split of matrices", "a grid of ranks", "columns and rows")
    if runs.nodes not in (None, kind.nodes):
        yield Respect("number of nodes", _NODES[kind.nodes], _NODES[runs.nodes or "several"])


def data_types_in_words(data_types: Iterable[DataType]) -> str:
    """Return the data types of products as one text; 16-bit ones are as fast as each other."""
    types = dict.fromkeys("16 bits" if each in _SIXTEEN_BITS else each for each in data_types)
    return " and ".join(sorted(types))


def model_in_words(has_experts: bool, is_hybrid: bool) -> str:
    """Return the kind of a model: "dense transformer", "hybrid with experts"."""
    layers = _layers(is_hybrid)
    return f"{layers} with experts" if has_experts else f"dense {layers}"


def _experts(has_experts: bool) -> str:
    return "experts" if has_experts else "dense"


def _layers(is_hybrid: bool) -> str:
    return "hybrid" if is_hybrid else "transformer"
