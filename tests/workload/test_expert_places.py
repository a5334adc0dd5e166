"""How many ranks and nodes a token reaches: by hand, by drawing, and as laws."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.workload.blocks.router import RandomChoice, expected_places

DEEPSEEK_V3 = RandomChoice(256, 8, 8, 4)


@pytest.mark.parametrize(
    ("choice", "places", "expected"),
    [
        # One of two experts: it is in one of the places.
        (RandomChoice(2, 1), 2, 1.0),
        # Two of four experts in two places: of 6 choices, 2 are in one place.
        (RandomChoice(4, 2), 2, 2 * (1 - 1 / 6)),
        # All experts are chosen.
        (RandomChoice(8, 8), 4, 4.0),
        # Two groups of two, one is chosen, and both of its experts: one of two places.
        (RandomChoice(4, 2, 2, 1), 2, 1.0),
        # The same groups over four places, one for each expert.
        (RandomChoice(4, 2, 2, 1), 4, 2.0),
        # Eight experts without groups on eight nodes of 32: a node is missed if all are elsewhere.
        (RandomChoice(256, 8), 8, 8 * (1 - math.comb(224, 8) / math.comb(256, 8))),
        # DeepSeek-V3: a group on each node, four of which are chosen, and 8 of their 128 experts.
        (DEEPSEEK_V3, 8, 4 * (1 - math.comb(96, 8) / math.comb(128, 8))),
        # Its ranks: 64 places of 4 experts, 32 of them in chosen groups.
        (DEEPSEEK_V3, 64, 32 * (1 - math.comb(124, 8) / math.comb(128, 8))),
        # Two groups on each of 4 nodes: none, one or both are chosen (15, 40 and 15 of 70).
        (
            DEEPSEEK_V3,
            4,
            4 * (1 - (15 + 40 * math.comb(96, 8) / math.comb(128, 8)) / 70
                 - 15 / 70 * math.comb(64, 8) / math.comb(128, 8)),
        ),
    ],
)  # fmt: skip
def test_places_by_hand(choice: RandomChoice, places: int, expected: float) -> None:
    assert expected_places(choice, places) == pytest.approx(expected, rel=1e-12)


def drawn_places(choice: RandomChoice, places: int, draws: int) -> float:
    """Draw choices, and return the mean number of different places."""
    rng, size = random.Random(7), -(-choice.num // places)
    total = 0
    for _ in range(draws):
        groups = rng.sample(range(choice.groups), choice.chosen)
        first = (group * choice.group_size for group in groups)
        candidates = [i for start in first for i in range(start, start + choice.group_size)]
        total += len({expert // size for expert in rng.sample(candidates, choice.top_k)})
    return total / draws


@pytest.mark.parametrize(
    ("choice", "places"),
    [
        (RandomChoice(128, 8), 8),
        (DEEPSEEK_V3, 8),
        (DEEPSEEK_V3, 2),
        (DEEPSEEK_V3, 32),
        # Groups of 5 experts do not fit places of 4, the last of which has 3.
        (RandomChoice(15, 2, 3, 2), 4),
    ],
)
def test_places_are_the_mean_of_drawn_ones(choice: RandomChoice, places: int) -> None:
    draws = 2000
    # The number of places of one draw is between 1 and top_k, so its deviation is below top_k / 2.
    tolerance = 4 * choice.top_k / 2 / math.sqrt(draws)
    assert drawn_places(choice, places, draws) == pytest.approx(
        expected_places(choice, places), abs=tolerance
    )


@st.composite
def choices(draw: st.DrawFn) -> RandomChoice:
    groups = draw(st.sampled_from([1, 2, 4, 8]))
    size = draw(st.sampled_from([2, 4, 8]))
    chosen = draw(st.integers(1, groups))
    top_k = draw(st.integers(1, chosen * size))
    return RandomChoice(groups * size, top_k, groups, chosen)


@given(choices(), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_token_reaches_between_one_place_and_all_that_it_can(
    choice: RandomChoice, places: int
) -> None:
    expected = expected_places(choice, places)
    assert 1 - 1e-9 <= expected <= min(choice.top_k, places) + 1e-9
    if places >= choice.groups:
        # No more than the places of the chosen groups.
        assert expected <= choice.chosen * places / choice.groups + 1e-9
    # Limited groups can only bring experts closer together.
    free = RandomChoice(choice.num, choice.top_k)
    assert expected <= expected_places(free, places) + 1e-9
