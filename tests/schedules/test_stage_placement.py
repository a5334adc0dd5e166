"""Placements of virtual stages: by hand, laws of all of them, and their messages."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.schedules import (
    Messages,
    Schedule,
    StagePlacement,
    back_and_forth,
    looped,
    time_slots,
)
from tests.helpers.schedule_strategies import placements, random_order
from tests.helpers.v_shaped import VShaped

MICROBATCHES = st.integers(1, 5)
SEEDS = st.integers(0, 2**20)


def test_placements_by_hand() -> None:
    assert looped(3, 2).ranks == (0, 1, 2, 0, 1, 2)
    assert looped(3, 2).virtual_stages == ((0, 3), (1, 4), (2, 5))
    assert back_and_forth(3, 2).ranks == (0, 1, 2, 2, 1, 0)
    assert back_and_forth(3, 2).virtual_stages == ((0, 5), (1, 4), (2, 3))
    assert back_and_forth(2, 3).ranks == (0, 1, 1, 0, 0, 1)
    assert back_and_forth(4, 1) == looped(4, 1)


@given(st.integers(1, 12))
def test_a_v_is_p_ranks_and_back(p: int) -> None:
    ranks = [v if v < p else 2 * p - 1 - v for v in range(2 * p)]
    assert [*back_and_forth(p, 2).ranks] == ranks


@given(st.integers(1, 12), st.integers(1, 5))
def test_a_loop_is_the_remainder(p: int, m: int) -> None:
    placement = looped(p, m)
    assert [*placement.ranks] == [v % p for v in range(p * m)]
    assert [*placement.chunks] == [v // p for v in range(p * m)]


@given(placements())
def test_chunks_of_ranks_are_all_virtual_stages_once(placement: StagePlacement) -> None:
    for virtual_stage, rank in enumerate(placement.ranks):
        chunk = placement.chunks[virtual_stage]
        assert placement.virtual_stages[rank][chunk] == virtual_stage
    assert {*map(len, placement.virtual_stages)} == {placement.num_chunks}
    assert placement.num_ranks * placement.num_chunks == placement.num_virtual_stages


def test_ranks_with_unequal_numbers_of_chunks_are_no_placement() -> None:
    with pytest.raises(AssertionError, match="unequal"):
        StagePlacement(2, (0, 1)).chunks  # noqa: B018


@given(placements(), MICROBATCHES, SEEDS)
@settings(max_examples=60)
def test_neighbours_on_different_ranks_exchange_messages(
    placement: StagePlacement, n: int, seed: int
) -> None:
    messages = Messages.of(random_order(placement, n, seed))
    ranks, ends = placement.ranks, Counter[tuple[int, int]]()
    for message, step in zip(messages, messages.step.tolist(), strict=True):
        sender, receiver = message.producer.virtual_stage, message.consumer.virtual_stage
        assert (message.sender, message.receiver) == (ranks[sender], ranks[receiver])
        assert message.receiver == (message.sender + step) % placement.num_ranks
        ends[sender, receiver] += 1
    pairs = [(v, v + 1) for v in range(len(ranks) - 1) if ranks[v] != ranks[v + 1]]
    assert ends == {pair: n for low, high in pairs for pair in ((low, high), (high, low))}


@given(placements(), MICROBATCHES, SEEDS)
@settings(max_examples=60)
def test_files_keep_their_placement(placement: StagePlacement, n: int, seed: int) -> None:
    schedule = random_order(placement, n, seed)
    read = Schedule.from_csv(schedule.to_csv(), schedule.name)
    assert read == schedule
    assert read.placement.ranks == placement.ranks


def test_an_action_off_the_v_is_refused() -> None:
    text = VShaped().build(2, 2, 1).to_csv()
    assert text == "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"
    with pytest.raises(InputError) as error:
        Schedule.from_csv("0F0,3F0,3B0,0B0,2B0\n1F0,2F0,1B0\n", "custom")
    assert "E404 3F0 does not belong on rank 0" in str(error.value)
    assert "rank 0 of 2 holds virtual stages [0, 2]" in str(error.value)


def test_a_mistyped_virtual_stage_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="E404 999999999B0 does not belong on rank 0"):
        Schedule.from_csv("0F0,999999999B0\n", "custom")


@given(st.integers(2, 6), st.integers(1, 12))
@settings(max_examples=40)
def test_the_v_of_the_tests_can_run_and_is_balanced(p: int, n: int) -> None:
    """Its bubble is at most that of 1F1B with passes of two chunks, and all ranks hold as much."""
    schedule = VShaped().build(p, 2, n)
    schedule.validate()
    slots = time_slots(schedule)
    assert slots.min() >= 0
    assert np.bincount(schedule.rank).tolist() == [4 * n] * p
    assert slots.max() + 1 <= 4 * (n + p - 1)
