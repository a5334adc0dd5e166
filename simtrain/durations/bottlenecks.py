"""What limits work, and which entries of the hardware profile its time comes from.

No formula is repeated here. One entry after another is lowered by a millionth, and the duration
model computes the time again. The relative change of the time, a million times larger, is the share
of the time in proportion to that entry: 0.9 of a product's time may depend on the speed of its main
loop, and 0.1 on the overhead of its tiles. The entry with the largest share names the limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from simtrain.base.values import dataclass
from simtrain.durations.model import DurationModel
from simtrain.hardware.algorithms import Protocol
from simtrain.hardware.cluster import CollectiveCurve, Level
from simtrain.hardware.entries import entries_of, with_changed
from simtrain.hardware.profile import Tile

_CHANGE = -1e-6
"""Of two equal bounds, a slower one lengthens the time; a faster one does not shorten it."""
_LEAST_SHARE = 1e-6
"""Smaller shares are rounding."""
_EQUAL = 1e-3
"""Two shares that differ by less are equal: two entries that the model multiplies."""


class Limit(StrEnum):
    """What would have to be faster to shorten the time most."""

    TENSOR_CORES = "tensor cores"
    CUDA_CORES = "CUDA cores"
    POWER = "power"
    MEMORY = "memory bandwidth"
    LAUNCH = "kernel latency"
    LINK = "link"
    NETWORK = "network"
    LATENCY = "message latency"
    HOST = "host"

    @property
    def is_arithmetic(self) -> bool:
        return self in (Limit.TENSOR_CORES, Limit.CUDA_CORES, Limit.POWER)


_LIMITS = (
    ("gemm.by_dtype.fp32.*", Limit.CUDA_CORES),
    ("gemm*.mainloop_flops", Limit.TENSOR_CORES),
    ("gemm*.sustained_flops", Limit.POWER),
    ("gemm.operand_bandwidth", Limit.MEMORY),
    ("gemm.*", Limit.TENSOR_CORES),
    ("fused_attention.*", Limit.TENSOR_CORES),
    ("memory_bound.kernel_latency", Limit.LAUNCH),
    ("memory_bound.*", Limit.MEMORY),
    ("*.latency", Limit.LATENCY),
    ("*.step_latency", Limit.LATENCY),
    ("intra_node.all_*", Limit.LINK),
    ("intra_node.reduce_scatter", Limit.LINK),
    ("intra_node.point_to_point.efficiency", Limit.LINK),
    ("dispatchers.*.node_efficiency", Limit.LINK),
    ("dispatchers.*.network_efficiency", Limit.NETWORK),
    ("collectives.switch.*", Limit.LINK),
    ("intra_node.*", Limit.LINK),
    ("collectives.*", Limit.NETWORK),
    ("inter_node.*efficiency", Limit.NETWORK),
    ("inter_node.*", Limit.NETWORK),
    ("cluster.levels", Limit.NETWORK),
    ("host*", Limit.HOST),
    ("gpu.peak_flops", Limit.TENSOR_CORES),
)
"""The limit of each entry. Of entries that the model multiplies, the first here is named."""

_FIELDS: dict[type[BaseModel], tuple[tuple[tuple[str, ...], Limit | None], ...]] = {
    # Fields of a list's items that change together; None stands for the limit of the entry.
    Tile: ((("relative_speed",), None),),
    CollectiveCurve: ((("efficiency",), None), (("latency",), Limit.LATENCY)),
    Protocol: (
        (("efficiency",), None),
        (("base_latency", "node_step", "network_step"), Limit.LATENCY),
    ),
    Level: ((("oversubscription",), None),),
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits some work.

    Args:
        limit: what would have to be faster.
        entry: the dotted name of the entry that most of the time is in proportion to.
        shares: for each entry that the time depends on, the share of the time in proportion to it,
            0 to 1. Entries that the model multiplies have the same share.
    """

    limit: Limit
    entry: str
    shares: dict[str, float]


@dataclass(frozen=True)
class BottleneckFinder:
    """Finds the bottlenecks of times that a duration model computes."""

    model: DurationModel

    def of(self, seconds: Callable[[DurationModel], float]) -> Bottleneck | None:
        """The bottleneck of a time; None if it is 0 or depends on no entry that has a speed."""
        now_s = seconds(self.model)
        if now_s == 0:
            return None
        limits: list[tuple[float, str, Limit]] = []
        for name, limit, changed in self._changed:
            share = abs(math.log(seconds(changed) / now_s) / math.log1p(_CHANGE))
            if share > _LEAST_SHARE:
                limits.append((share, name, limit))
        if not limits:
            return None
        most = max(share for share, _, _ in limits)
        _, entry, limit = next(candidate for candidate in limits if candidate[0] > most - _EQUAL)
        shares: dict[str, float] = defaultdict(float)
        for share, name, _ in limits:
            shares[name] += share
        return Bottleneck(limit, entry, dict(sorted(shares.items(), key=lambda share: -share[1])))

    @cached_property
    def _changed(self) -> list[tuple[str, Limit, DurationModel]]:
        profile = self.model.profile
        ranked = [
            (place, name, entry.value)
            for name, entry in entries_of(profile)
            if (place := _place(name)) is not None
        ]
        return [
            (name, limit, DurationModel(with_changed(profile, name, lambda _, to=to: to)))  # type: ignore[misc]
            for place, name, value in sorted(ranked, key=lambda item: item[0])
            for to, limit in _changes(value, _LIMITS[place][1])
        ]


def _place(name: str) -> int | None:
    fitting = (place for place, (pattern, _) in enumerate(_LIMITS) if fnmatch(name, pattern))
    return next(fitting, None)


def _changes(value: Any, limit: Limit) -> Iterator[tuple[Any, Limit]]:
    """Values that differ a little, and the limit that each stands for; none for a count."""
    match value:
        case float():
            yield value * (1 + _CHANGE), limit
        case [*items] if (kind := type(items[0])) in _FIELDS:
            for fields, other in _FIELDS[kind]:
                yield [_changed_item(item, fields) for item in items], other or limit


def _changed_item(item: BaseModel, fields: Iterable[str]) -> BaseModel:
    return item.model_copy(update={name: _changed(getattr(item, name)) for name in fields})


def _changed(value: Any) -> Any:
    if isinstance(value, list):
        return [_changed(entry) for entry in value]
    return None if value is None else value * (1 + _CHANGE)
