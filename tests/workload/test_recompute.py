"""Recompute by units, blocks and microbatches: saved bytes, recomputed ops and time."""

import itertools
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.torch_model.shape import LayerShape
from simtrain.durations.collectives import total_wire_bytes
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import most_outstanding, one_f_one_b, save_all_actions
from simtrain.workload.chunk import chunk_of
from simtrain.workload.model_ends import FinalNorm
from simtrain.workload.ops import Op, Phase, total_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.recompute import SAVE_ALL
from tests.helpers.toys import (
    a100,
    chunk_with,
    kept_bytes,
    layer_scenarios,
    machine_of,
    ops_of,
    paper_scenario,
    pass_with,
    plan_of,
    run,
    saving_all,
    scenario_with,
    shape_of,
    small,
)

SELECTIVE, FULL = (RecomputePolicy(strategy=name) for name in ("selective", "full"))


def full(**fields: Any) -> RecomputePolicy:
    return RecomputePolicy(strategy="full", **fields)


def kept(scenario: Scenario, num_layers: int, policy: RecomputePolicy) -> int:
    chunk = chunk_with(scenario, num_layers)
    return kept_bytes(record_pass(pass_with(scenario, chunk, "F", recompute=policy)))


def backward_ops(scenario: Scenario, num_layers: int, policy: RecomputePolicy) -> tuple[Op, ...]:
    chunk = chunk_with(scenario, num_layers)
    return ops_of(pass_with(scenario, chunk, "B", recompute=policy))


def layer_input(shape: LayerShape) -> int:
    """Return 2sbh bytes, or 2sbh/t under sequence parallelism."""
    whole = 2 * shape.seq_length * shape.microbatch * shape.hidden
    return whole // shape.tensor if shape.sequence_parallel else whole


def scores(shape: LayerShape) -> int:
    """Return 5as²b/t, the bytes per layer that selective recompute does not save."""
    return 5 * shape.heads * shape.seq_length**2 * shape.microbatch // shape.tensor


def whole_layer(shape: LayerShape) -> Fraction:
    """Return sbh (10 + 24/t + 5as/ht), or sbh/t (34 + 5as/h) under sequence parallelism."""
    sbh = shape.seq_length * shape.microbatch * shape.hidden
    undivided = Fraction(10, shape.tensor if shape.sequence_parallel else 1)
    return sbh * (undivided + Fraction(24, shape.tensor)) + scores(shape)


LAYERS = st.integers(1, 7)


@given(layer_scenarios(), LAYERS)
def test_saved_bytes_are_proportional_to_the_number_of_layers(
    scenario: Scenario, num_layers: int
) -> None:
    whole, core = whole_layer(shape_of(scenario)), scores(shape_of(scenario))
    assert kept(scenario, num_layers, SAVE_ALL) == num_layers * whole
    assert kept(scenario, num_layers, SELECTIVE) == num_layers * (whole - core)


@given(layer_scenarios(), LAYERS, LAYERS)
def test_the_uniform_method_saves_one_input_per_unit(
    scenario: Scenario, num_layers: int, unit: int
) -> None:
    expected = -(-num_layers // unit) * layer_input(shape_of(scenario))
    assert kept(scenario, num_layers, full(num_layers=unit)) == expected


@given(layer_scenarios(), LAYERS, LAYERS)
def test_the_block_method_saves_everything_in_the_other_layers(
    scenario: Scenario, first: int, others: int
) -> None:
    shape, policy = shape_of(scenario), full(method="block", num_layers=first)
    expected = first * layer_input(shape) + others * whole_layer(shape)
    assert kept(scenario, first + others, policy) == expected


def order_of_passes(scenario: Scenario, num_layers: int, policy: RecomputePolicy) -> str:
    """Return R for each recomputed layer and B for each backward pass of a layer, in order."""
    letters = {"QKV": "R", "QKV weight gradient": "B"}
    ops = backward_ops(scenario, num_layers, policy)
    return "".join(letters[op.name] for op in ops if op.name in letters)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SAVE_ALL, "BBBBB"),
        (SELECTIVE, "BBBBB"),
        (FULL, "RBRBRBRBRB"),
        (full(num_layers=2), "RB" + "RRBB" + "RRBB"),
        (full(num_layers=3), "RRBB" + "RRRBBB"),
        (full(num_layers=5), "RRRRRBBBBB"),
        (full(method="block", num_layers=2), "BBB" + "RBRB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_unit_is_recomputed_just_before_its_backward_pass(
    policy: RecomputePolicy, expected: str
) -> None:
    """The backward pass runs from the last unit, which may be shorter, to the first."""
    assert order_of_passes(paper_scenario("22B"), 5, policy) == expected


def test_a_block_between_two_layers_of_a_unit_is_recomputed_with_them() -> None:
    """Layers 0 and 1 are a unit, with a norm between them; another norm precedes layer 2, a unit.

    Saved are the inputs of both units, and the input of the norm between them.
    """
    scenario = paper_scenario("22B")
    (layer,) = chunk_with(scenario, 1).blocks
    norm = FinalNorm("layer_norm")
    chunk = chunk_of([layer, norm, layer, norm, layer])
    forward, backward = (
        record_pass(pass_with(scenario, chunk, kind, recompute=full(num_layers=2))) for kind in "FB"
    )
    assert forward.owners == (0, 1, 2, 3, 4)
    assert backward.owners == (4, 4, 3, 0, 1, 2, 2, 1, 0)
    letters = {"QKV": "R", "QKV weight gradient": "B"}
    letters |= {"final layer norm": "N", "final layer norm gradient": "n"}
    story = "".join(letters[op.name] for op in backward.ops if op.name in letters)
    assert story == "RB" + "n" + "RNR" + "BnB"
    assert kept_bytes(forward) == 3 * layer_input(shape_of(scenario))


@given(layer_scenarios(), LAYERS, LAYERS)
def test_units_repeat_every_op_of_their_layers(
    scenario: Scenario, num_layers: int, unit: int
) -> None:
    """Full recompute repeats the forward pass, including its collectives, for any unit."""
    chunk = chunk_with(scenario, num_layers)
    forward = ops_of(pass_with(scenario, chunk, "F", recompute=SAVE_ALL))
    ops = backward_ops(scenario, num_layers, full(num_layers=unit))
    again = tuple(op for op in ops if op.phase is Phase.RECOMPUTE)
    assert total_flops(again) == total_flops(forward)
    assert total_wire_bytes(again) == total_wire_bytes(forward)
    assert len(again) == len(forward)


# Appendix C and Figure 10: four stages and nine microbatches. Each stage saves all activations of
# one of its outstanding microbatches.


def kept_microbatches(plan: Plan, stage: int) -> list[int]:
    numbers = range(plan.scenario.num_microbatches)
    return [number for number in numbers if (stage, number) in saving_all(plan)]


def nine_microbatches(**recompute: Any) -> Plan:
    scenario = scenario_with(
        {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024},
        parallelism={"pipeline": 4},
        batch={"micro": 1, "global": 9},
        recompute=recompute,
    )
    return plan_of(scenario)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, [0, 4, 8]), (1, [0, 3, 6]), (2, [0, 2, 4, 6, 8]), (3, list(range(9)))],
)
def test_the_windows_of_appendix_c(stage: int, expected: list[int]) -> None:
    """Stage S has p - S outstanding microbatches. The last stage has one and recomputes nothing."""
    plan = nine_microbatches(strategy="full", keep_microbatches=1)
    assert kept_microbatches(plan, stage) == expected


def test_hfu_counts_the_recompute_of_the_other_microbatches() -> None:
    """Stages save all activations of 3, 3, 5 and 9 of nine microbatches, so 16 of 36 backward
    passes recompute.
    """
    machine = machine_of(a100())
    mixed, pure = (
        IterationSeconds.of(nine_microbatches(strategy="full", keep_microbatches=number), machine)
        for number in (1, 0)
    )
    repeated = [one.flops[1] - one.flops[0] for one in (mixed, pure)]
    assert repeated[0] == Fraction(16, 36) * repeated[1]
    assert mixed.flops[0] == pure.flops[0]


@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 6))
def test_at_most_the_given_number_of_microbatches_saves_everything(
    p: int, n: int, num_kept: int
) -> None:
    """With one chunk per stage, the number is reached if as many microbatches are outstanding."""
    schedule = one_f_one_b(p, n)
    keeps = iter(save_all_actions(schedule, [num_kept] * p))
    for actions, window in zip(schedule.ranks, most_outstanding(schedule), strict=True):
        signs = {"F": 1, "B": -1}
        changes = [signs[action.kind] * bool(next(keeps)) for action in actions]
        assert max(itertools.accumulate(changes)) == min(num_kept, window)


# Iteration times.


def seconds(**recompute: Any) -> float:
    return run(small(recompute=recompute)).iteration_time_s
