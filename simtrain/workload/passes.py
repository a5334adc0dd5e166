"""The passes of a chunk, and the ops that they issue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk
from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import OverlapPolicy, Segment
from simtrain.workload.ops import Op
from simtrain.workload.sharding import Sharding
from simtrain.workload.tape import Microbatch

PassKind = Literal["F", "B", "I", "W"]
"""A forward pass, a whole backward pass, or its input or weight gradients."""


@hashed_once
@dataclass(frozen=True)
class PassOptions:
    """What all passes of a rank share; `sharding` are the states of ZeRO stages 2 and 3."""

    microbatch: Microbatch
    overlap: OverlapPolicy
    sharding: Sharding | None = None


@hashed_once
@dataclass(frozen=True)
class Pass:
    """A forward or backward pass of a chunk, for one microbatch, under a recompute policy."""

    chunk: Chunk
    kind: PassKind
    recompute: RecomputePolicy
    options: PassOptions


@dataclass(frozen=True, slots=True, eq=False)
class PassRecord:
    """The ops of a pass.

    Args:
        segments: in issue order.
        starts: the position of each segment's first op.
        owners: the place in the chunk of the block whose tensors each segment saves and frees; -1
            for what belongs to none.
        joints: pairs of an op and a collective of an earlier segment that it waits for.
        layer_ends: for each layer, how many ops have been issued when its work ends.
        gathered_bytes: parameters that ZeRO has gathered, at most at the same time.
        bucket_bytes: gradients that ZeRO has not reduced yet, at most at the same time.
    """

    segments: tuple[Segment, ...]
    starts: tuple[int, ...]
    owners: tuple[int, ...]
    joints: tuple[tuple[int, int], ...]
    layer_ends: tuple[int, ...]
    gathered_bytes: int = 0
    bucket_bytes: int = 0

    @property
    def ops(self) -> Iterator[Op]:
        """All ops in issue order."""
        return chain.from_iterable(segment.ops for segment in self.segments)
