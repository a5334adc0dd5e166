"""Schedules: their text form, golden orders, rules for each rank's line, and time slots."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.schedules import (
    Action,
    Kind,
    Messages,
    Order,
    OrderOptions,
    Schedule,
    build,
    gpipe,
    interleaved,
    looped,
    most_outstanding,
    one_f_one_b,
    time_slots,
)
from tests.helpers.schedule_strategies import orders

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.csv"))
"""Orders by name, stages, chunks per stage and microbatches: Megatron-LM's, that of PyTorch 2.13's
`ScheduleDualPipeV`, sail-sg's V-Half and V-Min, others from their rules."""


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_schedules_equal_the_golden_files(file: Path) -> None:
    name, *sizes = file.stem.rsplit("_", 3)
    p, m, n = map(int, sizes)
    text, plain = file.read_text(), name.removesuffix("_merged")
    schedule = build(plain, p, m, n, OrderOptions(merges=plain != name))
    assert schedule.to_csv() == text
    assert Schedule.from_csv(text, schedule.name).placement == schedule.placement


def test_schedules_of_one_stage_by_hand() -> None:
    assert one_f_one_b(1, 3).to_csv() == "0F0,0B0,0F1,0B1,0F2,0B2\n"
    assert gpipe(1, 2).to_csv() == "0F0,0F1,0B0,0B1\n"
    assert interleaved(1, 2, 2).to_csv() == "0F0,1F0,1B0,0F1,0B0,1F1,1B1,0B1\n"


def test_1f1b_with_fewer_microbatches_than_stages() -> None:
    assert one_f_one_b(4, 2).to_csv() == (
        "0F0,0F1,0B0,0B1\n"  # warm-up takes all: there are 2 microbatches, not p - 1 = 3
        "1F0,1F1,1B0,1B1\n"
        "2F0,2F1,2B0,2B1\n"
        "3F0,3B0,3F1,3B1\n"
    )


@given(orders())
@settings(max_examples=80)
def test_every_order_is_valid_and_parses_back_from_text(order: Order) -> None:
    actions = order.actions
    actions.validate()
    assert Schedule.from_csv(actions.to_csv(), actions.name) == actions


@given(p=st.integers(1, 12), n=st.integers(1, 24))
@settings(max_examples=50)
def test_peaks_of_live_chunks_without_interleaving(p: int, n: int) -> None:
    windows = most_outstanding(one_f_one_b(p, n)).tolist()
    assert windows == [min(p - rank, n) for rank in range(p)]
    assert most_outstanding(gpipe(p, n)).tolist() == [n] * p


def test_a_split_backward_keeps_the_chunk_alive_until_its_weight_gradient() -> None:
    schedule = Schedule.from_csv("0F0,0I0,0F1,0I1,0W0,0W1\n", "1f1b")
    assert most_outstanding(schedule).tolist() == [2]
    assert most_outstanding(one_f_one_b(1, 2)).tolist() == [1]


@given(
    stage=st.integers(0, 10**6),
    kind=st.sampled_from(["F", "B", "I", "W"]),
    microbatch=st.integers(0, 10**6),
)
@settings(max_examples=50)
def test_actions_parse_back_from_text(stage: int, kind: Kind, microbatch: int) -> None:
    action = Action(stage, kind, microbatch)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        *["F0", "2F", "2f0", "2X0", "-2F0", "2F-1", "2.0F0", "02F0", "٢F0", "2F9999999999"],
        "2F0 ",
        "2 F 0",
    ],
)
def test_text_that_is_not_an_action_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        Action.parse(text)
    assert f"E401 {text!r} is not an action" in str(error.value)
    assert 'write for example "2F0": virtual stage 2, forward, microbatch 0' in str(error.value)


def test_csv_may_have_spaces_and_idle_slots() -> None:
    text = "0F0, 0F1,,,0B0, 0B1\n,1F0,1B0,1F1,1B1,\n"
    assert Schedule.from_csv(text, "1f1b") == one_f_one_b(2, 2)


def test_a_bad_cell_is_refused_with_its_line() -> None:
    with pytest.raises(InputError) as error:
        Schedule.from_csv("0F0,0B0\n1F0, 1Q0\n", "1f1b", file="mine.csv")
    lines = str(error.value).splitlines()
    assert lines[0] == "mine.csv:2:6: E401 '1Q0' is not an action"
    assert lines[1].endswith("1F0, 1Q0")
    assert lines[2].index("^") == lines[1].index("1Q0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "schedule.csv: E402 the schedule contains no actions"),
        (",,\n", "schedule.csv: E402 the schedule contains no actions"),
        ("0F0,0B0,1F0\n1B0\n", "E404 1F0 does not belong on rank 0"),
        ("0F0,0F0,0B0\n", "E405 rank 0 runs 0F0 twice"),
        ("0B0,0F0\n", "E406 rank 0 runs 0B0 before 0F0"),
        ("1F0,0F0,1B0,0B0\n", "E406 rank 0 runs 1F0 before 0F0"),
        ("0F0,1F0,0B0,1B0\n", "E406 rank 0 runs 0B0 before 1B0"),
        ("0F0,0W0,0I0\n", "E406 rank 0 runs 0W0 before 0I0"),
        ("0F0\n", "E407 rank 0 does not run virtual stage 0, microbatch 0 exactly once"),
        ("0F0,0I0\n", "E407 rank 0 does not run virtual stage 0, microbatch 0 exactly once"),
        ("0F0,0B0,0I0,0W0\n", "E407 rank 0 does not run virtual stage 0, microbatch 0"),
        ("0F0,0F1,0B0,0B1\n1F1,1B1\n", "E407 rank 1 does not run virtual stage 1, microbatch 0"),
        ("0F0,0B0\n\n", "E407 rank 1 does not run virtual stage 1, microbatch 0 exactly once"),
    ],
)
def test_impossible_schedules_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Schedule.from_csv(text, "1f1b")
    assert message in str(error.value)


def test_errors_name_the_first_problem_and_the_line_of_each_rank() -> None:
    with pytest.raises(InputError) as error:
        Schedule.from_csv("0B0,0F0\n1B0,1F0\n", "1f1b", file="mine.csv")
    places = [str(problem.location) for problem in error.value.problems]
    assert places == ["mine.csv:1:1", "mine.csv:2:1"]
    assert [problem.message for problem in error.value.problems] == [
        "rank 0 runs 0B0 before 0F0",
        "rank 1 runs 1B0 before 1F0",
    ]


def test_ranks_and_stages_must_agree() -> None:
    with pytest.raises(InputError, match="3 stages, but actions for 2 ranks"):
        Schedule.of("1f1b", looped(3, 1), 2, one_f_one_b(2, 2).ranks).validate()


@pytest.mark.parametrize(
    ("name", "p", "m", "n", "message"),
    [
        ("1f1b", 0, 1, 8, "E411 0 stages"),
        ("1f1b", 4, 0, 8, "E411 0 chunks per stage"),
        ("gpipe", 4, 1, -1, "E411 -1 microbatches"),
        ("1f1b", 4, 2, 8, "E412 schedule 1f1b with 2 chunks per stage"),
        ("gpipe", 4, 3, 8, "E412 schedule gpipe with 3 chunks per stage"),
        ("interleaved", 4, 2, 10, "use 8 or 12 microbatches"),
        ("interleaved", 4, 2, 3, "use 4 microbatches"),
    ],
)
def test_illegal_counts_are_refused(name: str, p: int, m: int, n: int, message: str) -> None:
    with pytest.raises(InputError) as error:
        build(name, p, m, n)
    assert message in str(error.value)


CASES: list[tuple[str, int, int, int]] = [
    ("gpipe", 4, 1, 6),
    ("1f1b", 4, 1, 8),
    ("1f1b", 5, 1, 2),
    ("1f1b", 1, 1, 3),
    ("interleaved", 4, 3, 8),
]


@pytest.mark.parametrize(("name", "p", "v", "m"), CASES)
def test_the_bubble_equals_the_papers_formula(name: str, p: int, v: int, m: int) -> None:
    """2mv slots have passes and 2(p - 1) are idle: (p - 1)/v passes of a whole stage (Narayanan et
    al. 2021, Section 2.2).
    """
    slots = time_slots(build(name, p, v, m))
    assert slots.max() + 1 == 2 * m * v + 2 * (p - 1)


@pytest.mark.parametrize(("name", "p", "v", "m"), CASES)
def test_an_action_starts_after_the_previous_one_and_its_message(
    name: str, p: int, v: int, m: int
) -> None:
    schedule = build(name, p, v, m)
    slots, messages = time_slots(schedule), Messages.of(schedule)
    assert (slots[messages.consumer] > slots[messages.producer]).all()
    for own in np.split(slots, schedule.rank_starts[1:-1]):
        assert (np.diff(own) > 0).all()


def test_actions_of_a_deadlock_have_no_slot() -> None:
    """Each of two ranks waits for a pass that the other runs later."""
    schedule = Schedule.from_csv("0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n", "1f1b")
    assert time_slots(schedule).min() >= 0
    schedule = Schedule.from_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "1f1b")
    assert time_slots(schedule).tolist() == [0, -1, -1, -1, -1, -1, -1, -1]
