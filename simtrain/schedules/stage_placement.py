"""The placement of virtual stages on the ranks of a pipeline.

Virtual stages are a walk on a ring of ranks: each one is on the rank after that of its predecessor,
on the rank before it, or on the same rank. Looped placements (Narayanan et al. 2021), V-shaped ones
(Qi et al. 2024) and waves (Liu et al. 2023) are such walks. Two neighbours on one rank exchange no
message.

A pipeline may have several copies of the model, each with equally many virtual stages and
microbatches. Then the walk visits one copy after the other (DualPipe, DeepSeek-AI 2024).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass

_Rank = TypeVar("_Rank", int, NDArray[np.int32])


@dataclass(frozen=True)
class StagePlacement:
    """The rank of each virtual stage. Virtual stage 0 is on rank 0.

    Args:
        num_ranks: ranks of the pipeline.
        steps: [virtual stages - 1], step along the ring from the rank of each virtual stage to that
            of the next one: 1, -1, or 0 for the same rank.
        copies: copies of the model that the virtual stages are of.

    Each rank has equally many virtual stages. In ascending order, they are its chunks.
    """

    num_ranks: int
    steps: tuple[int, ...]
    copies: int = 1

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        distances = itertools.accumulate(self.steps, initial=0)
        return tuple(ring_neighbour(0, distance, self.num_ranks) for distance in distances)

    @functools.cached_property
    def virtual_stages(self) -> tuple[tuple[int, ...], ...]:
        """[ranks, chunks], the virtual stage of each chunk of a rank."""
        stages: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for virtual_stage, rank in enumerate(self.ranks):
            stages[rank].append(virtual_stage)
        assert len({*map(len, stages)}) == 1, f"ranks have unequal numbers of chunks: {stages}"
        return tuple(map(tuple, stages))

    @functools.cached_property
    def chunks(self) -> tuple[int, ...]:
        stages = enumerate(self.ranks)
        return tuple(self.virtual_stages[rank].index(stage) for stage, rank in stages)

    @property
    def num_virtual_stages(self) -> int:
        return len(self.steps) + 1

    @property
    def num_chunks(self) -> int:
        return self.num_virtual_stages // self.num_ranks

    @property
    def stages_per_copy(self) -> int:
        return self.num_virtual_stages // self.copies

    @property
    def interleave(self) -> int:
        return self.stages_per_copy // self.num_ranks

    def microbatches(self, virtual_stage: int, num_microbatches: int) -> range:
        number = num_microbatches // self.copies
        first = virtual_stage // self.stages_per_copy % self.copies * number
        return range(first, first + number)


@functools.lru_cache(maxsize=4096)
def looped(p: int, m: int) -> StagePlacement:
    """Place virtual stages on ranks 0 to p - 1, m times."""
    return StagePlacement(p, (1,) * (p * m - 1))


@functools.lru_cache(maxsize=4096)
def back_and_forth(p: int, m: int) -> StagePlacement:
    """Place virtual stages on ranks 0 to p - 1, then p - 1 to 0, and so on, m times in all.

    Two chunks have the shape of a V: the first and the last virtual stage are on rank 0.
    """
    there, back = (1,) * (p - 1), (-1,) * (p - 1)
    walks = itertools.islice(itertools.cycle((there, (0,), back, (0,))), 2 * m - 1)
    return StagePlacement(p, tuple(itertools.chain.from_iterable(walks)))


@functools.lru_cache(maxsize=4096)
def two_directions(p: int, m: int) -> StagePlacement:
    """Place a copy of the model on ranks 0 to p - 1, and another one on ranks p - 1 to 0.

    Each rank has m chunks of both copies.
    """
    there, back = (1,) * (p * m - 1), (-1,) * (p * m - 1)
    return StagePlacement(p, (*there, 0, *back), copies=2)


def common_placements(p: int, m: int) -> Iterator[StagePlacement]:
    """Yield the placements that an order from a file may have without declaring one."""
    yield from (looped(p, m), back_and_forth(p, m))
    if m % 2 == 0:
        yield two_directions(p, m // 2)


def ring_neighbour(rank: _Rank, step: int | _Rank, num_ranks: int) -> _Rank:
    """Return the rank that is `step` ranks after a rank on the ring; takes arrays, too."""
    return (rank + step) % num_ranks
