"""The section `variation` of a scenario: what differs between ranks, replicas and iterations."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from simtrain.scenario.section import CountOrZero, Section
from simtrain.units import parse_non_negative_seconds

MOST_RELATIVE = 0.3
"""Largest relative standard deviation. Beyond it, normal factors would often be near zero."""

MOST_PAUSES = 3_600_000.0
"""Most pauses per GPU and hour, 1,000 a second. Beyond it, they are no longer rare."""


def _time(text: str) -> str:
    parse_non_negative_seconds(text)
    return text


_Relative = Annotated[float, Field(ge=0, le=MOST_RELATIVE)]
_Time = Annotated[str, AfterValidator(_time)]


class Pauses(Section):
    """Rare pauses of single GPUs, of which every rank of the GPU's group waits for the end.

    per_gpu_hour: pauses per GPU and hour of computing; by default (null) the profile's.
    duration: mean duration of a pause; durations are exponential. By default (null) the profile's.
    """

    per_gpu_hour: Annotated[float, Field(ge=0, le=MOST_PAUSES)] | None = Field(
        default=None, examples=[0.5]
    )
    duration: _Time | None = Field(default=None, examples=["50 ms"])


class Slow(Section):
    """A GPU, node or link that is slow in every iteration.

    what: gpu (default): the kernels of one GPU take factor times as long; node: the kernels of all
        GPUs of a node, which is an NVLink domain; link: the transfers and collectives through the
        network adapters of a node.
    rank: rank whose GPU or node it is, counted from 0 over all ranks (placement.order). 0 by
        default.
    factor: time relative to that of the others, from 1 on.
    """

    what: Literal["gpu", "node", "link"] = Field(default="gpu", examples=["node"])
    rank: CountOrZero = Field(default=0, examples=[5])
    factor: Annotated[float, Field(ge=1, le=1000)] = Field(examples=[1.2])


class Variation(Section):
    """What differs between ranks, replicas and iterations (simtrain run --draws).

    If a field of this section is set, simtrain run also draws the iteration many times. Fields that
    are null take the entry of the hardware profile, or that of h100_sxm if it has none; 0 switches
    them off.

    kernels: standard deviation of the time of the kernels of a pass, relative to its mean. The
        tensor- and context-parallel ranks of a pass share it, because they wait for each other.
    collectives: standard deviation of the time of transfers and collectives, relative to its mean.
    gpu_spread: the same between such groups, drawn once for all iterations.
    pauses: rare pauses of single GPUs; by default (null) the profile's.
    slow: a GPU, node or link that is slow in every iteration; null by default.
    """

    kernels: _Relative | None = Field(default=None, examples=[0.02])
    collectives: _Relative | None = Field(default=None, examples=[0.05])
    gpu_spread: _Relative | None = Field(default=None, examples=[0.004])
    pauses: Pauses | None = None
    slow: Slow | None = None

    @property
    def is_set(self) -> bool:
        return any(value is not None for value in vars(self).values())
