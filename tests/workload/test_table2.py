"""One layer, compared with the paper: FLOPs and bytes of Table 2, order of ops of Figures 2-5."""

from fractions import Fraction

import pytest
from hypothesis import given

from simtrain.durations.collectives import total_wire_bytes
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.ops import Phase, total_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, Elementwise
from tests.helpers.toys import (
    STRATEGIES,
    TABLE3,
    a100,
    chunk_with,
    layer_ops,
    layer_scenarios,
    paper_scenario,
    pass_with,
    saved_bytes,
    shape_of,
    waits_of,
)

# Table 2: 72 sbh² (1 + s/6h) / t, plus recompute.
FLOPS = {
    "none": (72, Fraction(1, 6)),
    "selective": (72, Fraction(2, 9)),
    "full": (96, Fraction(1, 6)),
}
WIRE = {"none": 16, "selective": 16, "full": 24}


def kept_in_table2(scenario: Scenario) -> Fraction:
    """Return the activation bytes of a layer: Equations 1, 2 and 4 and the rows of Table 2."""
    shape = shape_of(scenario)
    s, b, h, a, t = shape.seq_length, shape.microbatch, shape.hidden, shape.heads, shape.tensor
    sequence, recompute = shape.sequence_parallel, scenario.recompute.strategy
    if recompute == "full":
        return Fraction(2 * s * b * h, t if sequence else 1)
    linear = Fraction(34, t) if sequence else 10 + Fraction(24, t)
    scores = Fraction(5 * a * s, h * t) if recompute == "none" else 0
    return s * b * h * (linear + scores)


def assert_is_table2(scenario: Scenario) -> None:
    shape = shape_of(scenario)
    s, b, h, t = shape.seq_length, shape.microbatch, shape.hidden, shape.tensor
    forward, backward = layer_ops(scenario)
    ops = forward + backward
    recompute = scenario.recompute.strategy
    factor, attention = FLOPS[recompute]
    assert total_flops(ops) == Fraction(factor * s * b * h**2, t) * (1 + attention * Fraction(s, h))
    communicated = Fraction(t - 1, t) * s * b * h
    assert total_wire_bytes(ops, include_extra=False) == WIRE[recompute] * communicated
    redone = 4 * communicated if shape.sequence_parallel else 0
    assert total_wire_bytes(ops) == WIRE[recompute] * communicated + redone
    assert saved_bytes(forward) == kept_in_table2(scenario)
    assert saved_bytes(backward) == 0


@given(layer_scenarios())
def test_any_legal_layer_equals_table_2(scenario: Scenario) -> None:
    assert_is_table2(scenario)


@pytest.mark.parametrize("model", TABLE3)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_flops_of_an_iteration(model: str, recompute: str) -> None:
    """Appendix A: 72BLsh² (1 + s/6h + v/12hL), plus the FLOPs of recompute."""
    scenario = with_few_microbatches(paper_scenario(model, recompute=recompute))
    big_b, big_l = scenario.batch.global_, scenario.model.num_layers
    s, h, v = scenario.model.seq_length, scenario.model.hidden_size, scenario.model.vocab_size
    unit = 72 * big_b * big_l * s * h**2
    bracket = 1 + Fraction(s, 6 * h) + Fraction(v, 12 * h * big_l)
    again = {
        "none": 0,
        "selective": Fraction(s, 18 * h),
        "full": Fraction(1, 3) * (1 + Fraction(s, 6 * h)),
    }
    result = simulate(scenario, a100())
    assert result.model_flops == unit * bracket
    assert result.hardware_flops == unit * (bracket + again[recompute])


def with_few_microbatches(scenario: Scenario) -> Scenario:
    """Return the scenario with one microbatch per stage, which is simulated faster."""
    batch = scenario.batch.model_copy(
        update={"global_": scenario.batch.micro * scenario.parallelism.pipeline}
    )
    return scenario.model_copy(update={"batch": batch})


FIGURES = {
    False: "attention layer norm | QKV | QKV bias | QKᵀ | softmax | softmax dropout | "
    "attention over V | merge heads | projection | attention f̄ | attention dropout and residual | "
    "MLP layer norm | h→4h | bias and GeLU | 4h→h | MLP f̄ | MLP dropout and residual",
    True: "attention layer norm | attention g | QKV | QKV bias | QKᵀ | softmax | softmax dropout | "
    "attention over V | merge heads | projection | attention ḡ | attention dropout and residual | "
    "MLP layer norm | MLP g | h→4h | bias and GeLU | 4h→h | MLP ḡ | MLP dropout and residual",
}


@pytest.mark.parametrize("sequence", [False, True])
def test_forward_follows_the_figures(sequence: bool) -> None:
    """Figures 2 and 3, with f̄ of Figure 4, or g and ḡ of Figure 5."""
    forward, _ = layer_ops(paper_scenario("22B", sequence=sequence))
    assert [op.name for op in forward] == FIGURES[sequence].split(" | ")


@pytest.mark.parametrize(("sequence", "recompute"), STRATEGIES)
def test_recomputed_ops_of_each_strategy(sequence: bool, recompute: str) -> None:
    """Full recompute first repeats the forward pass, selective the core just before
    its gradient.
    """
    scenario = paper_scenario("22B", sequence=sequence, recompute=recompute)
    forward, backward = layer_ops(scenario)
    again = [op.name for op in backward if op.phase is Phase.RECOMPUTE]
    if recompute == "full":
        assert again == [op.name for op in forward]
        assert [op.name for op in backward[: len(again)]] == again
    elif recompute == "selective":
        core = "QKᵀ | softmax | softmax dropout | attention over V | merge heads"
        assert again == core.split(" | ")
        names = [op.name for op in backward]
        assert names.index("attention over V scores gradient") == names.index("merge heads") + 1
    else:
        assert again == []


def hidden_behind(
    scenario: Scenario, *, backward: bool, overlaps: bool = True
) -> dict[str, list[str]]:
    """Return, for each collective, the kernels issued after it that do not wait for it."""
    kind = "B" if backward else "F"
    record = record_pass(pass_with(scenario, chunk_with(scenario, 1), kind, overlaps=overlaps))
    ops, waits = list(record.ops), waits_of(record)
    kernels = [place for place, op in enumerate(ops) if not isinstance(op.work, Collective)]
    found = {}
    for position, op in enumerate(ops):
        if not isinstance(op.work, Collective):
            continue
        later = [place for place in kernels if place > position]
        waiting = next((place for place in later if position in waits[place]), len(ops))
        found[op.name] = [ops[place].name for place in later if place < waiting]
    return found


def test_without_sequence_parallelism_all_reduces_hide_behind_weight_gradients() -> None:
    scenario = paper_scenario("22B")
    assert hidden_behind(scenario, backward=False) == {"attention f̄": [], "MLP f̄": []}
    assert hidden_behind(scenario, backward=True) == {
        "MLP f": ["h→4h weight gradient"],
        "attention f": ["QKV weight gradient", "QKV bias gradient"],
    }


def test_with_sequence_parallelism_half_of_the_backward_collectives_hide() -> None:
    scenario = paper_scenario("22B", sequence=True)
    exposed = {"attention g": [], "attention ḡ": [], "MLP g": [], "MLP ḡ": []}
    assert hidden_behind(scenario, backward=False) == exposed
    assert hidden_behind(scenario, backward=True) == {
        "MLP ḡ": [],
        "MLP g redone": ["h→4h input gradient"],
        "MLP g": ["h→4h weight gradient"],
        "attention ḡ": [],
        "attention g redone": ["QKV input gradient"],
        "attention g": ["QKV weight gradient", "QKV bias gradient"],
    }


@pytest.mark.parametrize("sequence", [False, True])
def test_bytes_that_the_kernels_of_a_layer_move(sequence: bool) -> None:
    """16-bit tensors have sbh (or sbh/t) elements, wide ones 4sbh/t. There are bs²a/t scores.

    The causal softmax reads the lower half of the scores and writes all of them. A mask has one
    byte per element.
    """
    n, wide, scores = 2048 * 4 * 6144, 4 * 2048 * 4 * 6144 // 8, 4 * 2048 * 2048 * 64 // 8
    local, part = (n // 8 if sequence else n), n // 8
    forward, backward = layer_ops(paper_scenario("22B", sequence=sequence))
    moved = {
        op.name: op.work.moved_bytes
        for op in forward + backward
        if isinstance(op.work, Elementwise)
    }
    for block in ("attention", "MLP"):
        assert moved.pop(f"{block} layer norm") == (2 + 2) * local
        assert moved.pop(f"{block} dropout and residual") == (2 + 2 + 2 + 1) * local
        assert moved.pop(f"{block} dropout gradient") == (2 + 1 + 2) * local
        assert moved.pop(f"{block} dropout bias gradient") == 2 * local + 2 * 6144
        assert moved.pop(f"{block} layer norm gradient") == (2 + 2 + 2) * local
        assert moved.pop(f"{block} layer norm residual sum") == (2 + 2 + 2) * local
    assert moved == {
        "QKV bias": (2 + 2) * 3 * part,
        "softmax": (1 + 2) * scores,
        "softmax dropout": (2 + 2 + 1) * scores,
        "merge heads": (2 + 2) * part,
        "bias and GeLU": (2 + 2) * wide,
        "bias and GeLU gradient": (2 + 2 + 2) * wide,
        "h→4h bias gradient": 2 * wide + 2 * 4 * 6144 // 8,
        "softmax dropout gradient": (2 + 1 + 2) * scores,
        "softmax gradient": (1 + 1 + 2) * scores,
        "join query, key and value gradients": (2 + 2) * 3 * part,
        "QKV bias gradient": 2 * 3 * part + 2 * 3 * 6144 // 8,
    }
