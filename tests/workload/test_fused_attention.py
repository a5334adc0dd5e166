"""Fused attention, compared with counts by hand: FLOPs, saved bytes, memory and time."""

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.durations.model import (
    AttentionMachine,
    attention_is_extrapolated,
    attention_seconds,
    narrow_head_slowdown,
)
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, Phase, total_flops, total_model_flops
from simtrain.workload.passes import Pass, PassKind
from simtrain.workload.record import record_pass
from simtrain.workload.work import FusedAttention
from tests.helpers.toys import (
    a100,
    chunk_with,
    kept_bytes,
    layer_ops,
    layer_scenarios,
    paper_scenario,
    pass_with,
    saved_bytes,
    scenario_with,
    shape_of,
)

FUSED = {"attention_backend": "fused"}


def fused_pass(scenario: Scenario, kind: PassKind) -> Pass:
    """Return a pass of one layer with fused attention, for heads of any size."""
    fused = scenario.model_copy(update=FUSED)
    return pass_with(fused, chunk_with(fused, 1), kind)


def ops(scenario: Scenario, *, fused: bool = True) -> tuple[Op, ...]:
    """Return the ops of one layer, forward and then backward."""
    forward, backward = layer_ops(scenario.model_copy(update=FUSED if fused else {}))
    return (*forward, *backward)


# --------------------------------------------------------------------------- saved bytes and memory


def kept_by_hand(scenario: Scenario) -> Fraction:
    """Return Equations 1, 2 and 4 without 5as/h, plus 4 bytes per row of scores."""
    shape = shape_of(scenario)
    s, b, h, a, t = shape.seq_length, shape.microbatch, shape.hidden, shape.heads, shape.tensor
    if scenario.recompute.strategy == "full":
        return Fraction(2 * s * b * h, t if shape.sequence_parallel else 1)
    linear = Fraction(34, t) if shape.sequence_parallel else 10 + Fraction(24, t)
    statistics = Fraction(4 * s * b * a, t) if scenario.recompute.strategy == "none" else 0
    return s * b * h * linear + statistics


@given(layer_scenarios())
def test_fused_attention_saves_no_scores(scenario: Scenario) -> None:
    forward, backward = (record_pass(fused_pass(scenario, kind)) for kind in ("F", "B"))
    assert kept_bytes(forward) == kept_by_hand(scenario)
    assert saved_bytes(backward.ops) == 0


@given(layer_scenarios())
def test_fused_attention_frees_all_saved_bytes(scenario: Scenario) -> None:
    forward, backward = (pass_memory(fused_pass(scenario, kind)) for kind in ("F", "B"))
    assert forward.remaining_bytes == backward.saved_bytes == kept_by_hand(scenario)
    assert backward.remaining_bytes == 0


def test_selective_recompute_of_fused_attention_saves_only_the_log_sum_exp() -> None:
    plain, selective = (paper_scenario("22B", recompute=what) for what in ("none", "selective"))
    (forward,) = (op for op in ops(plain) if op.name == "fused attention")
    again = [op for op in ops(selective) if op.phase is Phase.RECOMPUTE]
    assert [(op.name, op.work) for op in again] == [("fused attention", forward.work)]
    kept = [kept_bytes(record_pass(fused_pass(one, "F"))) for one in (plain, selective)]
    assert kept[0] - kept[1] == 4 * 2048 * 4 * 64 // 8


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


# ---------------------------------------------------------------------------- FLOPs and moved bytes


@given(layer_scenarios())
def test_flops_of_a_layer_by_hand(scenario: Scenario) -> None:
    """Unfused, 4 bs²h forward, 8 backward and 4 in recompute. Fused, half of 4, of 10 and of 4."""
    shape = shape_of(scenario)
    core = shape.microbatch * shape.seq_length**2 * shape.hidden // shape.tensor
    fused, unfused = ops(scenario), ops(scenario, fused=False)
    less = {"none": 5, "selective": 7, "full": 7}[scenario.recompute.strategy]
    assert total_flops(unfused) - total_flops(fused) == less * core
    assert total_model_flops(unfused) == total_model_flops(fused)


def test_bytes_by_hand() -> None:
    """The kernel moves 4 arrays of 3 · 10 · 8 elements and a number per row; the backward one 8
    arrays.
    """
    forward = FusedAttention(3, 10, 8)
    assert forward.moved_bytes == 4 * 240 * 2 + 30 * 4
    backward = dataclasses.replace(forward, is_backward=True)
    assert backward.moved_bytes == 8 * 240 * 2 + 30 * 4


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


@pytest.mark.parametrize(
    ("heads", "length", "size", "outside"),
    [(8, 1024, 128, False), (64, 16384, 128, False), (7, 1024, 128, True), (8, 1024, 96, True)],
)
def test_sizes_outside_the_fit_are_extrapolated(
    heads: int, length: int, size: int, outside: bool
) -> None:
    kernel = a100().fused_attention
    assert kernel is not None
    work = FusedAttention(heads, length, size)
    assert attention_is_extrapolated(work, kernel.valid_shapes.value) is outside
