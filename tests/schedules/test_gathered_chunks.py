"""Gathers of whole chunks: by hand, against PyTorch, and how many an order needs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.schedules import NAMED, Schedule, build
from simtrain.schedules.gathered_chunks import (
    chunk_gathers,
    first_backwards,
    most_held,
    most_unreduced,
)
from tests.helpers.schedule_strategies import schedules


def rows(schedule: Schedule, most: int, rank: int = 0) -> list[tuple[int, str, str]]:
    """Return a rank's gathers: chunk, action before which it starts, action that needs it."""
    gathers = chunk_gathers(schedule, most)
    columns = gathers.virtual_stage.tolist(), gathers.before.tolist(), gathers.reader.tolist()
    return [
        (chunk, str(schedule.action(before)), str(schedule.action(reader)))
        for chunk, before, reader in zip(*columns, strict=True)
        if schedule.rank[before] == rank
    ]


def test_a_breadth_first_order_by_hand() -> None:
    """0F0 0F1 2F0 2F1 4F0 4F1, then 4B1 4B0 2B1 2B0 0B1 0B0: chunk 2 stays until its backwards."""
    schedule = build("looped_bfs", 2, 3, 2)
    assert rows(schedule, 1) == [
        (0, "0F0", "0F0"),
        (2, "2F0", "2F0"),
        (4, "4F0", "4F0"),
        (2, "2B1", "2B1"),
        (0, "0B1", "0B1"),
    ]
    assert rows(schedule, 2) == [
        (0, "0F0", "0F0"),
        (2, "0F0", "2F0"),
        (4, "2F0", "4F0"),
        (0, "2B1", "0B1"),
    ]
    assert rows(schedule, 3) == [(0, "0F0", "0F0"), (2, "0F0", "2F0"), (4, "0F0", "4F0")]


@given(*(st.integers(1, 5) for _ in range(4)))
@settings(max_examples=25)
def test_a_breadth_first_order_gathers_each_chunk_once_or_twice(
    p: int, chunks: int, microbatches: int, most: int
) -> None:
    """2v - k gathers of v chunks, with any number of microbatches (Lamy-Poirier 2022)."""
    schedule = build("looped_bfs", p, chunks, microbatches)
    gathers = chunk_gathers(schedule, most)
    assert len(gathers) == p * (2 * chunks - min(most, chunks))
    ones = np.ones(schedule.num_virtual_stages, np.int64)
    assert most_held(schedule, gathers, ones).tolist() == [min(most, chunks)] * p
    assert most_unreduced(schedule, ones).tolist() == [min(2, chunks)] * p


@given(st.integers(2, 4), st.integers(2, 3), st.integers(2, 4))
@settings(max_examples=15)
def test_a_depth_first_order_gathers_for_each_group(p: int, chunks: int, groups: int) -> None:
    """Interleaved 1F1B gathers every chunk again for each group of p microbatches."""
    ends = len(chunk_gathers(build("interleaved", p, chunks, p), 1))
    more = len(chunk_gathers(build("interleaved", p, chunks, p * groups), 1)) - ends
    assert more >= p * (groups - 1) * chunks
    ones = np.ones(p * chunks, np.int64)
    order = build("interleaved", p, chunks, p * groups)
    assert most_unreduced(order, ones).tolist() == [chunks] * p


@given(schedules(), st.integers(1, 4))
@settings(max_examples=40)
def test_a_pass_has_its_chunk_and_no_stage_holds_too_many(schedule: Schedule, most: int) -> None:
    gathers = chunk_gathers(schedule, most)
    held = np.zeros((len(schedule.kind), schedule.num_virtual_stages), np.int64)
    for chunk, before, reader, freed in zip(
        gathers.virtual_stage, gathers.before, gathers.reader, gathers.freed, strict=True
    ):
        assert before <= reader < freed and schedule.virtual_stage[reader] == chunk
        held[before:freed, chunk] += 1
    assert held.max() == 1
    assert held[np.arange(len(held)), schedule.virtual_stage].all()
    assert held.sum(axis=1).max() <= most
    ones = np.ones(schedule.num_virtual_stages, np.int64)
    by_hand = np.maximum.reduceat(held.sum(axis=1), schedule.rank_starts[:-1])
    assert most_held(schedule, gathers, ones).tolist() == by_hand.tolist()
    assert (first_backwards(schedule) <= schedule.last_backwards).all()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", ["looped_bfs", "interleaved", "zbv", "1f1b", "gpipe"])
def test_gathers_equal_those_of_torch(name: str) -> None:
    """`_add_unshard_reshard` of torch.distributed.pipelining."""
    from torch.distributed.pipelining import schedules as torch_schedules

    chunks = NAMED[name].num_chunks or (3 if NAMED[name].has_chunks else 1)
    schedule = build(name, 3, chunks, 6)
    for most in (1, 2, 3):
        for rank, actions in enumerate(schedule.ranks):
            theirs = [torch_schedules._Action.from_str(str(action)) for action in actions]
            lowered = torch_schedules._add_unshard_reshard(theirs, most)
            waiting, expected = list[int](), list[tuple[int, str]]()
            for action in lowered:
                if action.computation_type == torch_schedules.UNSHARD:
                    waiting.append(action.stage_index)
                elif action.computation_type != torch_schedules.RESHARD:
                    expected += [(chunk, str(action)) for chunk in waiting]
                    waiting = []
            assert [row[:2] for row in rows(schedule, most, rank)] == expected
