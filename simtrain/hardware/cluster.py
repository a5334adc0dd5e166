"""Sections `cluster`, `intra_node` and `inter_node` of a hardware profile: nodes and links."""

import itertools
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from simtrain.base.entry import Count, Entry, Fraction, Positive, Strict, Text
from simtrain.base.mesh import Domains
from simtrain.base.quantities import Bytes, BytesPerSecond, NonNegativeSeconds
from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms import ALL_REDUCE


class Level(Strict):
    """A level of the network, such as leaf or spine; each of its units joins `nodes` nodes.

    `oversubscription` is the bandwidth of a unit's adapters divided by that of its uplinks.
    """

    name: Text
    nodes: Count
    oversubscription: Annotated[float, Field(ge=1)]


class Cluster(Strict):
    """The cluster's size and topology.

    `gpus_per_nvlink_domain` is for NVLink domains that span nodes (72 GPUs in nodes of 4 in a GB200
    NVL72); by default a domain is a node. `levels` lists the network's levels, narrowest first;
    without it, all nodes are connected at full bandwidth.
    """

    gpus_per_node: Entry[Count]
    num_nodes: Entry[Count]
    gpus_per_nvlink_domain: Entry[Count] | None = None
    levels: Entry[Annotated[list[Level], Field(min_length=1)]] | None = None

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node.value * self.num_nodes.value

    @property
    def nvlink_gpus(self) -> int:
        return (self.gpus_per_nvlink_domain or self.gpus_per_node).value

    @property
    def domains(self) -> Domains:
        """GPUs of an NVLink domain, and of each network level if there are any."""
        if self.levels is None:
            return self.nvlink_gpus
        per_node = self.gpus_per_node.value
        return (self.nvlink_gpus, *(per_node * level.nodes for level in self.levels.value))

    def domains_of(self, num_gpus: int) -> Domains:
        """GPUs of an NVLink domain that a job uses, and of each network level if there are any.

        If a job does not fill domains of several nodes, a scheduler gives it as many nodes of each
        as divide it equally, such as 16 of the 18 of a GB200 NVL72 for 64 nodes, so that groups of
        ranks do not straddle domains (Slurm's --segment; NVIDIA-NeMo/Megatron-Bridge,
        scripts/performance/utils/executors.py). If that is not more than half of each domain, the
        domains are filled instead.
        """
        whole, per_node = self.nvlink_gpus, self.gpus_per_node.value
        if num_gpus <= whole or whole == per_node or self.levels:
            return self.domains
        parts = (part for part in range(whole, whole // 2, -per_node) if not num_gpus % part)
        return next(parts, whole)

    def fills_domain(self, num_ranks: int) -> bool:
        """Whether a group with `num_ranks` in each NVLink domain leaves no room for another one.

        A job may use only a part of a domain of several nodes (`domains_of`).
        """
        is_part = self.gpus_per_nvlink_domain and 2 * num_ranks > self.nvlink_gpus
        return bool(is_part) or num_ranks == self.nvlink_gpus

    @property
    def oversubscriptions(self) -> tuple[float, ...]:
        return tuple(level.oversubscription for level in self.levels.value) if self.levels else ()

    @model_validator(mode="after")
    def _nested(self) -> Self:
        """Check that each unit holds whole units of the level below."""
        per_node, nvlink = self.gpus_per_node.value, self.nvlink_gpus
        if nvlink % per_node:
            raise FieldError(
                ("gpus_per_nvlink_domain", "value"),
                f"{nvlink} is not a multiple of gpus_per_node ({per_node})",
                f"an NVLink domain joins whole nodes: write a multiple of {per_node}",
            )
        if self.levels is None:
            return self
        sizes = [nvlink // per_node, *(level.nodes for level in self.levels.value)]
        for place, (smaller, nodes) in enumerate(itertools.pairwise(sizes)):
            if nodes <= smaller or nodes % smaller:
                below = self.levels.value[place - 1].name if place else "an NVLink domain"
                raise FieldError(
                    ("levels", "value", place, "nodes"),
                    f"{nodes} nodes are not a larger multiple of the {smaller} nodes of {below}",
                    f"each level joins whole units of the level below: write {2 * smaller} or "
                    f"another multiple of {smaller}",
                )
        return self


ROUNDING = 1e-3
"""Profiles give a few digits, so a smaller relative decrease in time is rounding."""


class CollectiveCurve(Strict):
    """A collective measured on `num_ranks` GPUs: latency and reached fraction of the link.

    `efficiency[i]` applies to arrays of `array_bytes[i]` (the whole array, as in nccl-tests) and is
    interpolated between sizes. It counts bytes as nccl-tests' bus bandwidth does, so that of an
    all-reduce can be above 1 (`most_fraction`).
    """

    num_ranks: Annotated[int, Field(ge=2)]
    latency: NonNegativeSeconds
    array_bytes: Annotated[list[Bytes], Field(min_length=1)]
    efficiency: Annotated[list[Positive], Field(min_length=1)]

    @model_validator(mode="after")
    def _curve(self) -> Self:
        sizes, fractions = self.array_bytes, self.efficiency
        if len(sizes) != len(fractions):
            raise ValueError(f"{len(sizes)} array_bytes but {len(fractions)} efficiency values")
        pairs = list(zip(sizes, fractions, strict=True))
        for (size, fraction), (next_size, next_fraction) in itertools.pairwise(pairs):
            if size >= next_size:
                raise ValueError(f"array_bytes must grow, but {next_size} follows {size}")
            if size / fraction > next_size / next_fraction * (1 + ROUNDING):
                raise ValueError(
                    f"{next_size} bytes would take less time than {size} bytes: "
                    f"efficiency {next_fraction} is too high after {fraction}"
                )
        return self


class PointToPoint(Strict):
    """A transfer between two ranks: latency and the reached fraction of the link."""

    latency: Entry[NonNegativeSeconds]
    efficiency: Entry[Fraction]


Curves = Entry[Annotated[list[CollectiveCurve], Field(min_length=1)]]


def most_fraction(kind: str, num_ranks: int) -> float:
    """The largest bus bandwidth of a collective inside a node, as a fraction of a GPU's link.

    nccl-tests counts the bytes of a ring, 2 (n - 1)/n of the array, whatever the algorithm
    (PERFORMANCE.md of NVIDIA/nccl-tests). An all-reduce in the switch needs only (n + 1)/n
    (`switch_s`), so the count can be 2 (n - 1)/(n + 1) of the link, 1.56 for 8 GPUs.
    """
    return max(1.0, 2 * (num_ranks - 1) / (num_ranks + 1)) if kind == ALL_REDUCE else 1.0


class IntraNode(Strict):
    """Links between the GPUs of one node; `bandwidth` is per GPU, one way.

    `in_situ_speed` is the speed of collectives inside a layer, relative to their curves. Without
    `all_to_all`, an all-to-all takes as long as a reduce-scatter of the same array.
    """

    bandwidth: Entry[BytesPerSecond]
    in_situ_speed: Entry[Positive]
    point_to_point: PointToPoint
    all_reduce: Curves
    all_gather: Curves
    reduce_scatter: Curves
    all_to_all: Curves | None = None

    @field_validator("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    @classmethod
    def _in_order_and_within_the_link(
        cls, entry: Curves | None, field: ValidationInfo
    ) -> Curves | None:
        curves = entry.value if entry else []
        sizes = [curve.num_ranks for curve in curves]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"num_ranks must grow from curve to curve, not {sizes}")
        for number, curve in enumerate(curves):
            most = most_fraction(str(field.field_name), curve.num_ranks)
            for place, fraction in enumerate(curve.efficiency):
                if fraction > most * (1 + ROUNDING):
                    raise FieldError(
                        ("value", number, "efficiency", place),
                        f"{fraction} is more than {curve.num_ranks} GPUs can reach of the link",
                        f"write at most {most:.4g}",
                    )
        return entry


class InterNode(Strict):
    """Network between nodes; `adapter_bandwidth` is per adapter, one way.

    A ring over all GPUs of its nodes reaches `whole_node_efficiency` of the adapters' bandwidth.
    Rings that share nodes with other rings at the same time (the data-parallel groups of
    tensor-parallel peers) reach `concurrent_efficiency`.
    """

    num_adapters: Entry[Count]
    adapter_bandwidth: Entry[BytesPerSecond]
    whole_node_efficiency: Entry[Fraction]
    concurrent_efficiency: Entry[Fraction]
    step_latency: Entry[NonNegativeSeconds]
    point_to_point: PointToPoint
