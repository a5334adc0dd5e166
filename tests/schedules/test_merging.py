"""Merged actions: their text, and the orders of Megatron-LM that have them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.schedules import (
    Action,
    FileVersion,
    MergedActions,
    OrderOptions,
    Schedule,
    build,
    looped,
    read_schedule,
    time_slots,
)

ONE_STAGE = "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2\n"


@pytest.mark.slow
@pytest.mark.ci
def test_pytorch_reads_merged_actions() -> None:
    from torch.distributed.pipelining.schedules import _Action

    for cell in ONE_STAGE.strip().split(","):
        assert str(_Action.from_str(cell)) == cell


def test_a_schedule_has_cells_and_actions() -> None:
    schedule = Schedule.from_csv(ONE_STAGE, "1f1b")
    assert schedule.to_csv() == ONE_STAGE
    first, second, *_ = schedule.cells[0]
    assert first == Action(0, "F", 0)
    assert second == MergedActions(Action(0, "F", 1), Action(0, "B", 0))
    assert [str(action) for action in schedule.ranks[0]] == [
        "0F0",
        "0F1",
        "0B0",
        "0F2",
        "0B1",
        "0B2",
    ]
    assert schedule.cell.tolist() == time_slots(schedule).tolist() == [0, 1, 1, 2, 2, 3]
    assert schedule == build("1f1b", 1, 1, 3, OrderOptions(merges=True)) != build("1f1b", 1, 1, 3)


@given(p=st.integers(1, 6), m=st.integers(1, 4), groups=st.integers(1, 4))
@settings(max_examples=40)
def test_each_chunk_begins_and_ends_alone(p: int, m: int, groups: int) -> None:
    """The first forward and the last backward have no partner, and all pairs can run."""
    schedule = build("interleaved", p, m, p * groups, OrderOptions(merges=True))
    schedule.validate()
    assert not schedule.merges_ends
    assert (time_slots(schedule) >= 0).all()
    for rank, cells in enumerate(schedule.cells):
        warmup = min(2 * (p - rank - 1) + (m - 1) * p + 1, m * p * groups)
        assert [isinstance(cell, MergedActions) for cell in cells] == (
            [False] * warmup + [True] * (m * p * groups - warmup) + [False] * warmup
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(0F1;0B1)OVERLAP_F_B", "E409 0F1 and 0B1 cannot be merged"),
        ("(0B0;0F1)OVERLAP_F_B", "E409 0B0 and 0F1 cannot be merged"),
        ("(0F0;0W1)OVERLAP_F_B", "E409 0F0 and 0W1 cannot be merged"),
        ("(0F0;0B1;0B2)OVERLAP_F_B", "E401 '(0F0;0B1;0B2)OVERLAP_F_B' is not an action"),
        ("0F0,(0F1;0X0)OVERLAP_F_B", "schedule.csv:1:5: E401 '0X0' is not an action"),
        ("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B1,0B2", "schedule.csv:1:34: E405 rank 0 runs 0B1"),
    ],
)
def test_cells_that_cannot_run_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Schedule.from_csv(text, "custom")
    assert message in str(error.value)


def test_flags_that_merge_other_actions_are_refused() -> None:
    good = build("1f1b", 1, 1, 2, OrderOptions(merges=True))
    bad = Schedule.of("1f1b", looped(1, 1), 2, good.ranks)
    object.__setattr__(bad, "merges", good.follows_merged)  # 0B0 with 0B1
    with pytest.raises(InputError, match="E409 0B0 and 0B1 cannot be merged"):
        bad.validate()


def test_a_merged_pass_waits_for_both_inputs(tmp_path: Path) -> None:
    """0F1 is ready, but 0B0 waits for a rank that waits for 0F1."""
    file = tmp_path / "order.csv"
    file.write_text("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n")
    with pytest.raises(InputError) as error:
        read_schedule(FileVersion.of(str(file)))
    text = "order.csv:1:5: E408 rank 0 waits at 0B0 for 1B0, rank 1 waits at 1F1 for 0F1"
    assert text in str(error.value)


@pytest.mark.parametrize("sizes", [("1f1b", 1, 1, 3), ("interleaved", 2, 2, 4)])
def test_a_file_with_a_merged_order_has_its_name(sizes: Any, tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    file.write_text(build(*sizes, OrderOptions(merges=True)).to_csv())
    assert read_schedule(FileVersion.of(str(file))) == build(*sizes, OrderOptions(merges=True))
