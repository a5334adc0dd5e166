"""Sections `intra_node` and `inter_node` of a hardware profile: NVLink and the network."""

from __future__ import annotations

import itertools
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from simtrain.base.entry import Count, Entry, Fraction, Positive, Strict
from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms.algorithm import ALL_REDUCE
from simtrain.hardware.algorithms.switch import most_of_link
from simtrain.units import Bytes, BytesPerSecond, NonNegativeSeconds

ROUNDING = 1e-3
"""Profiles give a few digits, so a smaller relative decrease in time is rounding."""


class CollectiveCurve(Strict):
    """A collective measured on `num_ranks` GPUs: latency and reached fraction of the link.

    `efficiency[i]` applies to arrays of `array_bytes[i]` (the whole array, as in nccl-tests) and is
    interpolated between sizes. It counts bytes as nccl-tests' bus bandwidth does, so that of an
    all-reduce can be above 1 (`most_of_link`).
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
    """The most of the link that the bus bandwidth of a collective inside a node can be."""
    return most_of_link(num_ranks) if kind == ALL_REDUCE else 1.0


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
    def _one_curve_a_group_size(cls, entry: Curves | None) -> Curves | None:
        if entry is None:
            return None
        sizes = [curve.num_ranks for curve in entry.value]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"num_ranks must grow from curve to curve, not {sizes}")
        return entry

    @field_validator("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    @classmethod
    def _within_the_link(cls, entry: Curves | None, field: ValidationInfo) -> Curves | None:
        for number, curve in enumerate(entry.value if entry else ()):
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
