"""Time of fused attention kernels whose rows are not those of a causal sequence, by hand."""

import pytest

from simtrain.durations.model import AttentionMachine, attention_seconds
from simtrain.workload.work import FusedAttention

RATE, HALF_LENGTH, NUM_SMS, LATENCY_S = 500e12, 700.0, 8, 3e-6
MACHINE = AttentionMachine(
    forward_flops=RATE,
    forward_half_length=HALF_LENGTH,
    backward_flops=RATE / 2,
    backward_half_length=2 * HALF_LENGTH,
    num_sms=NUM_SMS,
    memory_bytes_per_s=1e18,  # memory never limits
    latency_s=LATENCY_S,
    forward_softmax_channels=0.0,
    backward_softmax_channels=0.0,
)
HEADS, CHANNELS = 2, 128


def by_hand(queries: int, row: float, half_length: float, longest: int) -> float:
    """Return the seconds of a forward kernel whose rows are as long as those of `row` tokens.

    QKᵀ and attention over V: 2 FLOPs x (row / 2) keys x channels for each query and head. A
    multiprocessor waits for half of the longest block of 128 rows.
    """
    flops = 2 * 2 * HEADS * queries * (row / 2) * CHANNELS
    waiting = NUM_SMS * 128 * longest / (HEADS * queries)
    return LATENCY_S + flops / RATE * (1 + (half_length + waiting) / row)


def test_a_window_masks_blocks_at_both_of_its_edges() -> None:
    """Rows are as long as the causal ones of 2w - w²/s tokens, and 128 keys more are masked."""
    row = 2 * 1024 - 1024**2 / 4096
    op = FusedAttention(HEADS, 4096, CHANNELS, window=1024)
    assert attention_seconds(op, MACHINE) == pytest.approx(by_hand(4096, row, 700 + 128, 1024))


def test_earlier_keys_have_no_diagonal() -> None:
    """All 512 queries attend to all 4,096 keys, as rows of a causal sequence of 2 x 4,096 do."""
    op = FusedAttention(HEADS, 512, CHANNELS, kv_length=4096, is_causal=False)
    assert attention_seconds(op, MACHINE) == pytest.approx(by_hand(512, 8192, 700 - 128, 4096))
