"""Vocabulary passes in the order of a pipeline.

Each rank has two more virtual stages, which exchange no messages: its part of the embedding, and
its part of the output layer with the loss. In the text of a schedule with V virtual stages on p
ranks, V + r is the embedding of rank r, and V + p + r its output layer.

The order without them is timed in slots. At the end of a microbatch's last forward pass, every rank
runs the first pass of the output layer next; the split says when it runs the second one. A rank
looks up a microbatch's tokens when the first stage begins the microbatch before, and adds gradients
to its table when the first stage has ended the microbatch after. Before a vocabulary pass, all
ranks run only what has begun by then, and none of it waits for the pass: no order has a deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.stage_placement import StagePlacement
from simtrain.schedules.vocabulary.split import VocabularySplit

EMBEDDING, OUTPUT = range(2)
"""The chunks that each rank has of a split vocabulary, in the order of their virtual stages."""
_NUM_CHUNKS = 2
_F, _B, _, _W = range(len(KINDS))
_OF_BROADCAST, _OF_OUTPUT, _OF_EMBEDDING, _OTHERS = range(4)
"""What comes first of equal times."""


def with_chunks(placement: StagePlacement, split: VocabularySplit | None) -> StagePlacement:
    """Return a placement with the vocabulary's chunks on each rank; itself without a split."""
    return replace(placement, num_spread=_NUM_CHUNKS) if split else placement


def with_passes(schedule: Schedule, split: VocabularySplit | None) -> Schedule:
    """Return a schedule with the vocabulary's passes on each rank; itself without a split."""
    if split is None:
        return schedule
    p, n, walk = schedule.num_stages, schedule.num_microbatches, schedule.placement.num_walked
    times = _PassTimes.of(schedule, split)
    ranks, numbers = np.arange(p, dtype=np.int32), np.arange(n, dtype=np.int32)
    columns: list[tuple[Ints, ...]] = [
        (
            np.tile(of_pass, p),
            np.full(p * n, turn),
            np.tile(numbers, p),
            np.repeat(ranks, n),
            np.repeat(walk + chunk * p + ranks, n),
            np.full(p * n, kind),
            np.tile(numbers, p),
        )
        for of_pass, turn, chunk, kind in (
            (times.first, _OF_OUTPUT, OUTPUT, _F),
            (times.second, _OF_OUTPUT, OUTPUT, _B),
            (times.look_up, _OF_EMBEDDING, EMBEDDING, _F),
            (times.scatter, _OF_EMBEDDING, EMBEDDING, _B),
        )
    ]
    # Other actions keep their order.
    places = np.arange(len(schedule.kind))
    actions = schedule.rank, schedule.virtual_stage, schedule.kind, schedule.microbatch
    columns.append((times.starts, np.full(len(places), _OTHERS), places, *actions))
    time, turn, number, rank, stage, kind, microbatch = map(
        np.concatenate, zip(*columns, strict=True)
    )
    order = np.lexsort((kind, number, turn, time, rank))
    return replace(
        schedule,
        placement=with_chunks(schedule.placement, split),
        rank_starts=np.searchsorted(rank[order], np.arange(p + 1)).astype(np.int32),
        virtual_stage=stage[order].astype(np.int32),
        kind=kind[order].astype(np.int32),
        microbatch=microbatch[order].astype(np.int32),
    )


class VocabularyStep(NamedTuple):
    """A collective over all stages.

    Args:
        name: what it does, as in `workload.split_vocabulary.stage_collectives`.
        before, after: the actions that it waits for, and those that wait for it.
    """

    name: str
    before: Ints
    after: Ints


def vocabulary_steps(schedule: Schedule, split: VocabularySplit) -> list[VocabularyStep]:
    """Return the collectives of a schedule with vocabulary passes, in the order of their launch.

    The rank that has what is broadcast does not wait for the broadcast.
    """
    p, walk = schedule.num_stages, schedule.placement.num_walked
    walked = np.flatnonzero(schedule.virtual_stage < walk)
    bounds = np.searchsorted(walked, schedule.rank_starts).astype(np.int32)
    columns = (schedule.virtual_stage[walked], schedule.kind[walked], schedule.microbatch[walked])
    alone = Schedule(
        schedule.name,
        replace(schedule.placement, num_spread=0),
        schedule.num_microbatches,
        bounds,
        *columns,
    )
    times, ranks = _PassTimes.of(alone, split), range(p)
    look_up, scatter, first, second = (
        np.stack([_places(schedule, walk + chunk * p + rank, is_forward=forward) for rank in ranks])
        for chunk in (EMBEDDING, OUTPUT)
        for forward in (True, False)
    )
    begin = _places(schedule, 0, is_forward=True)
    end = _places(schedule, 0, is_forward=False)
    last = _places(schedule, walk - 1, is_forward=True)
    back = _places(schedule, walk - 1, is_forward=False)
    last_rank = schedule.placement.ranks[walk - 1]
    steps = list[tuple[tuple[int, ...], VocabularyStep]]()

    def add(key: tuple[int, ...], name: str, before: Ints, after: Ints) -> None:
        steps.append((key, VocabularyStep(name, before, after)))

    for i in range(schedule.num_microbatches):
        now, later = (int(times.first[i]), _OF_OUTPUT, i), (int(times.second[i]), _OF_OUTPUT, i)
        ready = now[0], _OF_BROADCAST, i, 0
        add(ready, "hidden states", last[i : i + 1], np.delete(first[:, i], last_rank))
        waits = [second[:, i], back[i : i + 1]] if split.has_early_gradient else [second[:, i]]
        add((*now, 1), "statistics", first[:, i], np.concatenate(waits))
        if not split.has_early_gradient:
            add((*later, 2), "gradient", second[:, i], back[i : i + 1])
        shown = int(times.look_up[i]), _OF_EMBEDDING, i
        add((*shown, 0), "embedding sum", look_up[:, i], begin[i : i + 1])
        done = int(times.done[i]), _OF_BROADCAST, i
        add((*done, 1), "embedding gradient", end[i : i + 1], scatter[1:, i])
    return [step for _, step in sorted(steps, key=lambda pair: pair[0])]


@dataclass(frozen=True, slots=True)
class _PassTimes:
    """When the passes of a schedule and of its vocabulary can run, in slots.

    Args:
        starts: [actions], start of each action of the schedule.
        first, second, look_up, scatter: [microbatches], of the output layer and the embedding.
        done: [microbatches], end of the last backward pass of each.
    """

    starts: Ints
    first: Ints
    second: Ints
    look_up: Ints
    scatter: Ints
    done: Ints

    @classmethod
    def of(cls, schedule: Schedule, split: VocabularySplit) -> _PassTimes:
        """Time a schedule without vocabulary passes."""
        starts, ends = split.slots(schedule)
        n, last = schedule.num_microbatches, schedule.placement.num_walked - 1
        begins = starts[_places(schedule, 0, is_forward=True)]
        first = ends[_places(schedule, last, is_forward=True)]
        back = starts[_places(schedule, last, is_forward=False)]
        done = ends[_places(schedule, 0, is_forward=False)]
        following = np.minimum(np.arange(n) + 1, n - 1)
        look_up, second = np.append(0, begins[:-1]), split.second_pass_times(first, back)
        return cls(starts, first, second, look_up, done[following], done)


def _places(schedule: Schedule, virtual_stage: int, *, is_forward: bool) -> Ints:
    """Return [microbatches], forward passes of a virtual stage, or those of input gradients."""
    is_kind = (schedule.kind == _F) if is_forward else (schedule.kind != _F) & (schedule.kind != _W)
    places = np.flatnonzero((schedule.virtual_stage == virtual_stage) & is_kind)
    ordered: Ints = places[np.argsort(schedule.microbatch[places])]
    return ordered
