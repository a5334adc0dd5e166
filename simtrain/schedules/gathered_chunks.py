"""When stages gather the parameters of whole chunks, ahead of their passes, and free them again.

Before each action a stage holds the parameters of the next chunks that it runs, a limited number of
them: it frees those of other chunks, and starts to gather those that it does not hold. After the
last backward pass of a chunk its gradients are reduced.

Sources: Lamy-Poirier 2022 (arXiv 2211.05953), where a breadth-first order needs each chunk once or
twice; `_add_unshard_reshard` and `_add_reduce_grad` of torch.distributed.pipelining's schedules.py,
whose stages hold three chunks.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.family import Order
from simtrain.schedules.schedule import Ints, Schedule

_WEIGHT_GRADIENTS = KINDS.index("B"), KINDS.index("W")


@dataclass(frozen=True, slots=True, eq=False)
class ChunkGathers:
    """The gathers of all stages, in the order in which each stage starts them.

    Args:
        virtual_stage: [gathers], the chunk.
        before: [gathers], the action before which a stage starts the gather.
        reader: [gathers], the first action that needs the parameters.
        freed: [gathers], the action before which the parameters are freed, or the one after the
            stage's last.
    """

    virtual_stage: Ints
    before: Ints
    reader: Ints
    freed: Ints

    def __len__(self) -> int:
        return len(self.before)


@functools.lru_cache(maxsize=32)
def gathers_of(order: Order, most: int) -> ChunkGathers:
    """Return the gathers of an order whose stages hold at most `most` chunks at a time."""
    return chunk_gathers(order.actions, most)


def chunk_gathers(schedule: Schedule, most: int) -> ChunkGathers:
    """Return the gathers of a schedule whose stages hold at most `most` chunks at a time."""
    virtual_stage, rows = schedule.virtual_stage.tolist(), list[tuple[int, int, int, int]]()
    for start, end in itertools.pairwise(schedule.rank_starts.tolist()):
        present: dict[int, tuple[int, int]] = {}
        for place, following in enumerate(_next_chunks(virtual_stage[start:end], most), start):
            for chunk in [chunk for chunk in present if chunk not in following]:
                rows.append((chunk, *present.pop(chunk), place))
            for chunk in following:
                if chunk not in present:
                    present[chunk] = place, virtual_stage.index(chunk, place, end)
        rows += [(chunk, *when, end) for chunk, when in present.items()]
    # A stage starts those before one action in the order in which it needs them.
    rows.sort(key=lambda row: row[1:3])
    return ChunkGathers(*np.array(rows, np.int32).reshape(-1, 4).T)


def _next_chunks(chunks: list[int], most: int) -> list[tuple[int, ...]]:
    """Return, for each action of a stage, the first different chunks from it on, at most `most`."""
    following: tuple[int, ...] = ()
    sets = [following] * len(chunks)
    for place in range(len(chunks) - 1, -1, -1):
        if not following or chunks[place] != following[0]:
            others = (chunk for chunk in following if chunk != chunks[place])
            following = (chunks[place], *others)
        sets[place] = following[:most]
    return sets


def most_held(schedule: Schedule, gathers: ChunkGathers, sizes: Ints) -> Ints:
    """Return [stages], the largest sum of the sizes of chunks that a stage holds at a time.

    `sizes` are [virtual stages].
    """
    changes = np.zeros(len(schedule.kind) + 1, np.int64)
    gathered = sizes[gathers.virtual_stage]
    np.add.at(changes, gathers.before, gathered)
    ends = np.isin(gathers.freed, schedule.rank_starts)
    np.add.at(changes, gathers.freed[~ends], -gathered[~ends])
    return _most_by_rank(schedule, changes)


def most_unreduced(schedule: Schedule, sizes: Ints) -> Ints:
    """Return [stages], the largest sum of the sizes of chunks with gradients that are not reduced.

    Gradients exist from a chunk's first backward pass on. They are reduced during the passes after
    its last one, until the next chunk has ended its own.
    """
    first, last = first_backwards(schedule), schedule.last_backwards
    changes = np.zeros(len(schedule.kind) + 1, np.int64)
    np.add.at(changes, first, sizes)
    for stages in schedule.placement.virtual_stages:
        by_end = sorted(stages, key=lambda stage: last[stage])
        for stage, following in itertools.pairwise(by_end):
            if last[following] + 1 < schedule.rank_starts[schedule.rank[last[following]] + 1]:
                changes[last[following] + 1] -= sizes[stage]
    return _most_by_rank(schedule, changes)


def first_backwards(schedule: Schedule) -> Ints:
    """Return [virtual stages], the first action of each one that computes weight gradients."""
    first = np.full(schedule.num_virtual_stages, len(schedule.kind), np.int32)
    places = np.flatnonzero(np.isin(schedule.kind, _WEIGHT_GRADIENTS))
    np.minimum.at(first, schedule.virtual_stage[places], places)
    return first


def _most_by_rank(schedule: Schedule, changes: Ints) -> Ints:
    """Return [stages], the highest sum of the changes up to an action of each stage."""
    most = [
        int(np.cumsum(changes[start:end]).max())
        for start, end in itertools.pairwise(schedule.rank_starts.tolist())
    ]
    return np.array(most, np.int64)
