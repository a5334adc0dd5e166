"""The passes of a chunk, and the ops that they issue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, product
from typing import Literal

from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk
from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import OverlapPolicy, Segment, Stream, stream_of
from simtrain.workload.ops import Op
from simtrain.workload.sharding import Sharding
from simtrain.workload.tape import Microbatch

PassKind = Literal["F", "B", "I", "W", "R"]
"""A forward pass, a whole backward pass, its input or weight gradients, or the reduction of the
gradients that all backward passes have left."""


@hashed_once
@dataclass(frozen=True)
class PassOptions:
    """What all passes of a rank share.

    Args:
        sharding: the states of ZeRO stages 2 and 3.
        launch_s: host time to launch a kernel: 0 for passes that are launched whole, None for that
            of the hardware profile.
    """

    microbatch: Microbatch
    overlap: OverlapPolicy
    sharding: Sharding | None = None
    launch_s: float | None = None


@hashed_once
@dataclass(frozen=True)
class Pass:
    """A forward or backward pass of a chunk, for one microbatch, under a recompute policy."""

    chunk: Chunk
    kind: PassKind
    recompute: RecomputePolicy
    options: PassOptions


@dataclass(frozen=True, eq=False)
class PassRecord:
    """The ops of a pass.

    Args:
        segments: in issue order.
        owners: the place in the chunk of the block whose tensors each segment saves and frees; -1
            for what belongs to none.
        layer_ends: for each layer, how many segments have been issued when its work ends.
        waits: pairs of a segment's number and that of an earlier collective, a segment of its own,
            for which that segment waits and what is issued after it.
        follows: pairs of two collectives, each a segment of its own: the first alone waits for the
            second.
        gathered_bytes: parameters that ZeRO has gathered, at most at the same time.
        bucket_bytes: gradients that ZeRO has not reduced yet, at most at the same time.
    """

    segments: tuple[Segment, ...]
    owners: tuple[int, ...]
    layer_ends: tuple[int, ...]
    waits: tuple[tuple[int, int], ...] = ()
    follows: tuple[tuple[int, int], ...] = ()
    gathered_bytes: int = 0
    bucket_bytes: int = 0

    @property
    def ops(self) -> Iterator[Op]:
        """All ops in issue order."""
        return chain.from_iterable(segment.ops for segment in self.segments)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The position of each segment's first op, and the number of all ops."""
        return tuple(accumulate([len(segment.ops) for segment in self.segments], initial=0))

    def joints(self) -> Iterator[tuple[int, int]]:
        """Pairs of an op and a collective of an earlier segment that it waits for.

        The first kernel that follows an awaited collective waits for it, and what is issued
        between them.
        """
        for number, collective in self.follows:
            yield self.starts[number], self.starts[collective]
        explicit: dict[int, list[int]] = defaultdict(list)
        for number, collective in self.waits:
            explicit[number].append(self.starts[collective])
        awaited: dict[int, None] = {}
        for number, (segment, start) in enumerate(zip(self.segments, self.starts, strict=False)):
            awaited |= dict.fromkeys(explicit.get(number, ()))
            if awaited:
                num_waiting, has_kernel = _first_ops(segment)
                yield from product(range(start, start + num_waiting), awaited)
                if has_kernel:
                    awaited = {}
            if segment.awaited:
                awaited |= dict.fromkeys([start + place for place in segment.awaited])


@lru_cache(maxsize=4096)
def _first_ops(segment: Segment) -> tuple[int, bool]:
    """How many ops wait for what is awaited before a segment, and whether one is a kernel.

    A kernel and what comes before it wait; what comes after it, waits for the kernel.
    """
    for place, op in enumerate(segment.ops):
        if stream_of(op) is Stream.COMPUTE:
            return place + 1, True
    return len(segment.ops), False
