"""The kernels of torch's cross entropy by hand, and those of a recorded one."""

import pytest

from simtrain.guests.recording.program import ProgramOp
from simtrain.guests.recording.works import RecordedKernel, kernel_work
from simtrain.workload.blocks.vocabulary import (
    label_gradient_work,
    label_loss_work,
    log_softmax_gradient_work,
    log_softmax_work,
)
from simtrain.workload.work import Elementwise

ROWS = 4096


@pytest.mark.parametrize(("vocab", "reads", "reads_back"), [(32_000, 1, 2), (128_256, 3, 3)])
def test_rows_that_caches_lose_are_read_in_each_pass(
    vocab: int, reads: int, reads_back: int
) -> None:
    """125 KiB stay in the L2 cache while a row is computed; 501 KiB do not."""
    row = 4 * vocab
    forward, backward = log_softmax_work(ROWS, row), log_softmax_gradient_work(ROWS, row)
    assert (forward.read_bytes, forward.write_bytes) == (reads * ROWS * row, ROWS * row)
    assert (backward.read_bytes, backward.write_bytes) == (reads_back * ROWS * row, ROWS * row)


def test_labels_pick_a_number_of_each_row() -> None:
    """A sector of 32 bytes and a label of 8 bytes; the gradient is zeros but for one number."""
    assert label_loss_work(ROWS, 8).moved_bytes == ROWS * 40
    gradient = label_gradient_work(ROWS, 4 * 32_000, 8)
    assert (gradient.read_bytes, gradient.write_bytes) == (8 * ROWS, ROWS * (4 * 32_000 + 32))


@pytest.mark.parametrize(
    ("name", "reads", "is_backward", "ours"),
    [
        ("_log_softmax", ["f32[4096,50304]"], False, log_softmax_work(ROWS, 4 * 50304)),
        (
            "_log_softmax_backward_data",
            ["f32[4096,50304]"] * 2,
            True,
            log_softmax_gradient_work(ROWS, 4 * 50304),
        ),
        ("nll_loss_forward", ["f32[4096,50304]", "i64[4096]"], False, label_loss_work(ROWS, 8)),
        (
            "nll_loss_backward",
            ["f32[]", "f32[4096,50304]", "i64[4096]", "f32[]"],
            True,
            label_gradient_work(ROWS, 4 * 50304, 8),
        ),
    ],
)
def test_recorded_kernels_have_the_same_work(
    name: str, reads: list[str], is_backward: bool, ours: Elementwise
) -> None:
    op = ProgramOp.model_validate({"op": f"aten.{name}", "reads": reads, "writes": reads[:1]})
    assert kernel_work(RecordedKernel(op, is_backward)) == ours


def test_fused_adam_writes_no_gradients() -> None:
    """Four arrays are read and three written, although its schema changes four."""
    lists = [f"{number} x f32[1000]" for number in (4, 3)]
    op = {"op": "aten._fused_adamw_", "reads": [lists[0]], "writes": ["4 x f32[1000]"]}
    work = kernel_work(RecordedKernel(ProgramOp.model_validate(op), is_backward=False))
    assert isinstance(work, Elementwise)
    assert (work.read_bytes, work.write_bytes) == (16_000, 12_000)
