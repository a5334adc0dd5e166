"""Seq1F1B: its authors' order, bubble and peak, and what its passes' order must be."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import simulate
from simtrain.errors import InputError
from simtrain.schedules import OrderOptions, Schedule, build, most_outstanding, one_f_one_b
from tests.helpers.pipelines import PipelineSeconds, pipeline_program

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("name", "m", "n", "slices"), [("seq1f1b", 1, 3, 4), ("seq1f1b_interleaved", 2, 4, 2)]
)
def test_orders_equal_the_golden_files(name: str, m: int, n: int, slices: int) -> None:
    text = (GOLDEN / f"{name}_p4_m{n}_{m}_chunks_{slices}_slices.csv").read_text()
    assert build(name, 4, m, n, OrderOptions(num_slices=slices)).to_csv() == text


class SliceQueue:
    """The authors' queue of one chunk: slices come in order, and leave the first microbatch from
    its end (`sequence_1f1b_queue`)."""

    def __init__(self, num_slices: int) -> None:
        self.num_slices = num_slices
        self.microbatches: list[list[int]] = [[]]

    def append(self, number: int) -> None:
        self.microbatches[-1].append(number)
        if len(self.microbatches[-1]) == self.num_slices:
            self.microbatches.append([])

    def pop(self) -> int:
        number = self.microbatches[0].pop()
        if not self.microbatches[0] and len(self.microbatches) > 1:
            self.microbatches.pop(0)
        return number


def authors_line(rank: int, p: int, m: int, n: int, slices: int) -> str:
    """Return a rank's line from their table, their warm-up and their queues (`schedules.py`)."""
    total = n * slices
    table = [
        (chunk, number)
        for start in range(0, total, p if m > 1 else total)
        for chunk in range(m)
        for number in range(start, min(start + (p if m > 1 else total), total))
    ]
    warmup = p - rank + slices - 2
    if m > 1:
        warmup = 2 * (p - rank - 1) + (m - 1) * p + slices - 1
    warmup, queues = min(warmup, len(table)), [SliceQueue(slices) for _ in range(m)]
    cells: list[str] = []

    def forward(turn: int) -> None:
        chunk, number = table[turn]
        queues[chunk].append(number)
        cells.append(f"{chunk * p + rank}F{number}")

    def backward(turn: int) -> None:
        chunk = m - 1 - table[turn][0]
        cells.append(f"{chunk * p + rank}B{queues[chunk].pop()}")

    for turn in range(warmup):
        forward(turn)
    for turn in range(len(table) - warmup):
        forward(warmup + turn)
        backward(turn)
    for turn in range(len(table) - warmup, len(table)):
        backward(turn)
    return ",".join(cells)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 5), st.integers(1, 8))
@settings(max_examples=40)
def test_orders_equal_those_of_the_authors(p: int, m: int, n: int, slices: int) -> None:
    """With several chunks, s divides p and p divides the microbatches."""
    name = "seq1f1b" if m == 1 else "seq1f1b_interleaved"
    if m > 1:
        slices, n = next(s for s in range(slices, 0, -1) if p % s == 0), n * p
    lines = build(name, p, m, n, OrderOptions(num_slices=slices)).to_csv().splitlines()
    assert lines == [authors_line(rank, p, m, n, slices) for rank in range(p)]


def makespan_s(schedule: Schedule, forward_s: int, backward_s: int) -> int:
    """Return the time of a schedule whose passes take these seconds, without messages."""
    durations = PipelineSeconds(
        lambda action: forward_s if action.kind == "F" else backward_s, lambda *_: 0
    )
    return int(simulate(pipeline_program(schedule, durations, overlap=True)[0]).makespan_s)


@given(*(st.integers(1, 6) for _ in range(5)))
@settings(max_examples=20)
def test_bubble_and_peak_of_equal_slices(
    p: int, n: int, slices: int, forward_s: int, more_s: int
) -> None:
    """The bubble is (p - 1)(F + B)/s; the first stage holds s + p - 1 slices (Sun et al. 2024)."""
    n, backward_s = n + p, forward_s + more_s
    schedule = build("seq1f1b", p, 1, n, OrderOptions(num_slices=slices))
    slice_s = forward_s + backward_s
    assert makespan_s(schedule, forward_s, backward_s) == n * slices * slice_s + (p - 1) * slice_s
    assert most_outstanding(schedule).tolist() == [slices + p - 1 - rank for rank in range(p)]


@given(st.integers(1, 3), st.integers(2, 3), st.sampled_from((1, 2)), st.integers(1, 5))
@settings(max_examples=10)
def test_bubble_and_peak_of_interleaved_slices(
    pairs: int, m: int, slices: int, backward_s: int
) -> None:
    """The bubble is (p - 1)(F + B)/vs; the first stage holds (v + 1)p + s - 2 slices of chunks."""
    p, n = 2 * pairs, 4 * pairs
    schedule = build("seq1f1b_interleaved", p, m, n, OrderOptions(num_slices=slices))
    slice_s = 1 + backward_s
    assert makespan_s(schedule, 1, backward_s) == (n * m * slices + p - 1) * slice_s
    assert most_outstanding(schedule)[0] == (m + 1) * p + slices - 2


@given(st.integers(1, 6), st.integers(1, 8))
@settings(max_examples=10)
def test_one_slice_is_1f1b(p: int, n: int) -> None:
    assert build("seq1f1b", p, 1, n).ranks == one_f_one_b(p, n).ranks


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from((1, 2, 4)))
@settings(max_examples=20)
def test_slices_run_forward_in_order_and_backward_in_the_opposite_order(
    pairs: int, m: int, n: int, slices: int
) -> None:
    """The keys of a slice exist before later slices, and its gradients are complete after them."""
    p = 4 * pairs
    name = "seq1f1b" if m == 1 else "seq1f1b_interleaved"
    schedule = build(name, p, m, n * p, OrderOptions(num_slices=slices))
    for kind, order in (("F", 1), ("B", -1)):
        for stage in range(p * m):
            actions = schedule.ranks[stage % p]
            numbers = [
                one.microbatch for one in actions if one.virtual_stage == stage and one.kind == kind
            ]
            for first in range(0, len(numbers), slices):
                run = numbers[first : first + slices]
                assert run == [*range(first, first + slices)][::order]


def test_slices_that_do_not_divide_the_interleaved_stages_are_refused() -> None:
    with pytest.raises(InputError, match="E458 schedule seq1f1b_interleaved of 3 slices on 4"):
        build("seq1f1b_interleaved", 4, 2, 4, OrderOptions(num_slices=3))
