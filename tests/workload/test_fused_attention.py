"""Fused attention, compared with counts by hand: FLOPs, saved bytes, memory and time."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.durations.model import AttentionMachine, attention_seconds, narrow_head_slowdown
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op
from simtrain.workload.work import FusedAttention
from tests.helpers.toys import layer_ops, scenario_with

FUSED = {"attention_backend": "fused"}


def ops(scenario: Scenario, *, fused: bool = True) -> tuple[Op, ...]:
    """Return the ops of one layer, forward and then backward."""
    forward, backward = layer_ops(scenario.model_copy(update=FUSED if fused else {}))
    return (*forward, *backward)


# --------------------------------------------------------------------------- saved bytes and memory


def test_memory_of_the_backward_kernel() -> None:
    """It holds Q, K, V, the output and their gradients in 16 bits, the gradient of Q also in fp32,
    and two fp32 numbers per row of scores.
    """
    model = {"num_layers": 1, "hidden_size": 24, "num_attention_heads": 3, "seq_length": 10}
    named = {op.name: op for op in ops(scenario_with(model))}
    forward, backward = named["fused attention"], named["fused attention gradient"]
    assert forward.work == FusedAttention(3, 10, 8)
    assert backward.work == FusedAttention(3, 10, 8, is_backward=True)
    assert backward.working_bytes(0) == 240 * (8 * 2 + 4) + 30 * (4 + 4)
    assert backward.working_bytes(240 * 4 * 2 + 30 * 4) == 240 * (4 * 2 + 4) + 30 * 4
    assert forward.working_bytes(0) == 240 * 4 * 2 + 30 * 4


# --------------------------------------------------------------------------------------------- time

MACHINE = AttentionMachine(
    forward_flops=200e12,
    forward_half_length=500.0,
    backward_flops=100e12,
    backward_half_length=1000.0,
    num_sms=100,
    memory_bytes_per_s=1e12,
    latency_s=3e-6,
)


@pytest.mark.parametrize(
    ("is_backward", "seconds"),
    [
        # 2 · 64 · 4000² · 125 = 2.56e11 FLOPs take 1 + 500/4000 + 12800/256000 = 1.175 times the
        # time at full speed. The half length is 500; 12800 is 100 SMs · 128 rows; 256000 is 64
        # heads · 4000 rows.
        (False, 2.56e11 / 200e12 * 1.175),
        (True, 2.5 * 2.56e11 / 100e12 * 1.3),
    ],
)
def test_seconds_by_hand(is_backward: bool, seconds: float) -> None:
    work = FusedAttention(64, 4000, 125, is_backward)
    assert attention_seconds(work, MACHINE) == pytest.approx(3e-6 + seconds)


def test_time_is_at_least_that_of_moving_the_tensors() -> None:
    slow = dataclasses.replace(MACHINE, memory_bytes_per_s=1e9)
    work = FusedAttention(1, 1000, 100)
    assert attention_seconds(work, slow) == pytest.approx(3e-6 + (4 * 200_000 + 4000) / 1e9)


@pytest.mark.parametrize(
    ("size", "slowdown"), [(64, 3 / 2), (96, 7 / 6), (128, 1.0), (160, 1.0), (256, 1.0)]
)
def test_narrow_heads_by_hand(size: int, slowdown: float) -> None:
    """The softmax takes the time of 128 channels: each FLOP takes (1 + 128/d) / 2 times as long."""
    assert narrow_head_slowdown(size, 128.0) == pytest.approx(slowdown)
    assert narrow_head_slowdown(size, 0.0) == 1.0
    work = FusedAttention(64, 4000, size, is_backward=True)
    narrow = dataclasses.replace(MACHINE, backward_softmax_channels=128.0)
    alone = attention_seconds(work, MACHINE) - MACHINE.latency_s
    assert attention_seconds(work, narrow) == pytest.approx(MACHINE.latency_s + slowdown * alone)


@given(size=st.integers(8, 255), channels=st.floats(0, 1000))
def test_a_wider_head_never_takes_less_time_and_never_more_for_each_flop(
    size: int, channels: float
) -> None:
    machine = dataclasses.replace(MACHINE, forward_softmax_channels=channels)
    narrow, wide = (FusedAttention(64, 4096, each) for each in (size, size + 1))
    seconds = [attention_seconds(each, machine) for each in (narrow, wide)]
    assert seconds[0] <= seconds[1] * (1 + 1e-12)
    assert seconds[1] / wide.flops <= seconds[0] / narrow.flops * (1 + 1e-12)
