"""Peaks of whole stages, compared with the formulas of the paper and of ZeRO."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.buffers import ModelStates, model_states
from simtrain.iteration.memory.report import COMPONENTS, MemoryReport, memory_report
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import a100, changed, paper_scenario, plan_of, scenario_with, small

GIB = 2**30


def memory_of(scenario: Scenario, **changes: Any) -> MemoryReport:
    return memory_report(plan_of(scenario), changed(a100(), **changes))


def activations(scenario: Scenario) -> list[int]:
    stages = memory_of(scenario).stages
    return [stage.components_bytes["activations"] for stage in stages]


def layer_formula(scenario: Scenario) -> Fraction:
    """Return the bytes of a layer's activations: Equations 1, 2, 4 and 6 and Table 2."""
    model, split = scenario.model, scenario.parallelism
    s, b, h, t = model.seq_length, scenario.batch.micro, model.hidden_size, split.tensor
    sbh = s * b * h
    if scenario.recompute.strategy == "full":
        return Fraction(2 * sbh, t if split.sequence_parallel else 1)
    linear = Fraction(34, t) if split.sequence_parallel else 10 + Fraction(24, t)
    scores = 0 if scenario.recompute.strategy == "selective" else 5
    return sbh * (linear + Fraction(scores * model.num_attention_heads * s, h * t))


def embedding_formula(scenario: Scenario) -> Fraction:
    """Return sbh, the bytes of the embedding's dropout mask (Section 4.3)."""
    model, split = scenario.model, scenario.parallelism
    sbh = model.seq_length * scenario.batch.micro * model.hidden_size
    return Fraction(sbh, split.tensor if split.sequence_parallel else 1)


def head_formula(scenario: Scenario) -> Fraction:
    """Return 2sbh of the final layer norm, 2sbh of the output layer and 4sbv/t of fp32 logits."""
    model, split = scenario.model, scenario.parallelism
    tokens = model.seq_length * scenario.batch.micro
    undivided = Fraction(4 * tokens * model.hidden_size)
    logits = Fraction(4 * tokens * model.vocab_size, split.tensor)
    return undivided / (split.tensor if split.sequence_parallel else 1) + logits


# ------------------------------------------------------------------------------ activations


@pytest.mark.parametrize("name", ["22B", "175B", "530B", "1T"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_of_the_first_stage_equal_the_papers_formula(
    name: str, sequence: bool, recompute: str
) -> None:
    """L layers for any p (Equation 5), times 1 + (p - 1)/(pm); the same factor for
    the embedding.
    """
    scenario = paper_scenario(name, sequence=sequence, recompute=recompute)
    p, m = scenario.parallelism.pipeline, scenario.parallelism.interleave
    # Only the first chunk has the embedding. With interleaving, p of its microbatches are
    # outstanding.
    factor = 1 + Fraction(p - 1, p * m) if m > 1 else Fraction(1)
    expected = scenario.model.num_layers * layer_formula(scenario) * factor
    if p == 1:
        expected += head_formula(scenario)
    extras = activations(scenario)[0] - expected
    per_microbatch = embedding_formula(scenario)
    assert extras % per_microbatch == 0
    assert p <= extras / per_microbatch <= (2 * p if m > 1 else p)


@st.composite
def pipelines(draw: st.DrawFn) -> Scenario:
    """Draw a small model on up to six even or uneven stages, with any strategy and up to nine
    microbatches.
    """
    t, p = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    layers, own = [draw(st.integers(1, 3))] * p, {}
    if p > 1 and draw(st.booleans()):
        layers[0] = own["first_stage_layers"] = draw(st.integers(1, 5))
    if p > 1 and draw(st.booleans()):
        layers[-1] = own["last_stage_layers"] = draw(st.integers(1, 5))
    heads, micro = t * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return scenario_with(
        {
            "num_layers": sum(layers),
            "hidden_size": 8 * heads,
            "num_attention_heads": heads,
            "seq_length": 4 * t * draw(st.integers(1, 8)),
            "vocab_size": 16 * t,
        },
        parallelism={
            "tensor": t,
            "pipeline": p,
            "sequence_parallel": t > 1 and draw(st.booleans()),
            **own,
        },
        batch={"micro": micro, "global": micro * draw(st.integers(1, 9))},
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        schedule=draw(st.sampled_from(["1f1b", "gpipe"])),
    )


@settings(max_examples=50)
@given(pipelines())
def test_activations_of_every_stage_equal_the_formula(scenario: Scenario) -> None:
    """1F1B has min(p - stage, M) outstanding microbatches (Appendix B), GPipe has M.

    The peak occurs with that many, except on the last stage of a short model, where it can be in
    the head. The formula is then the maximum of saved tensors.
    """
    stages, microbatches = scenario.parallelism.pipeline, scenario.num_microbatches
    for stage, found in enumerate(activations(scenario)):
        outstanding = microbatches
        if scenario.schedule == "1f1b":
            outstanding = min(stages - stage, microbatches)
        each = scenario.layers_of_stage(stage) * layer_formula(scenario)
        each += embedding_formula(scenario) if stage == 0 else 0
        each += head_formula(scenario) if stage == stages - 1 else 0
        assert found == outstanding * each


def test_deallocating_outputs_saves_the_papers_2_73_gib() -> None:
    """Appendix B: 2sbh bytes for each of the p outstanding microbatches of the first stage."""
    scenario = scenario_with(
        {"num_layers": 105, "hidden_size": 20480, "num_attention_heads": 128, "seq_length": 2048},
        parallelism={"tensor": 8, "pipeline": 35},
        batch={"micro": 1, "global": 280},
    )
    kept = scenario.model_copy(
        update={"memory": scenario.memory.model_copy(update={"deallocate_outputs": False})}
    )
    saved = [
        with_it - without
        for with_it, without in zip(activations(kept), activations(scenario), strict=True)
    ]
    assert saved == [2 * 2048 * 20480 * (35 - stage) for stage in range(34)] + [0]
    assert round(saved[0] / GIB, 2) == 2.73


@pytest.mark.parametrize("sequence", [False, True])
def test_sequence_parallelism_divides_kept_outputs(sequence: bool) -> None:
    grid = {"sequence_parallel": sequence}
    first, *_ = activations(small(grid, memory={"deallocate_outputs": False}))
    output = 2 * 2048 * 4096 // (4 if sequence else 1)
    assert first - activations(small(grid))[0] == 4 * output


# ----------------------------------------------------------------------------- model states


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (2, 4, 12)),
        ({"precision": {"gradients": "bf16"}}, (2, 2, 12)),
        ({"memory": {"zero_stage": 1}}, (2, 4, 3)),
        ({"memory": {"zero_stage": 2}}, (2, 1, 3)),
        ({"memory": {"zero_stage": 3}}, (0.5, 1, 3)),
        ({"memory": {"offload_optimizer": True}}, (2, 4, 0)),
        ({"memory": {"zero_stage": 2, "offload_optimizer": True}}, (2, 1, 0)),
    ],
)
def test_bytes_of_states_per_parameter(
    options: dict[str, Any], expected: tuple[float, ...]
) -> None:
    """With four replicas: 18 bytes per parameter with fp32 gradients, 16 without (ZeRO, Section
    3.1).
    """
    scenario = small({"pipeline": 1, "data": 4}, **options)
    number = 10**9
    states = model_states(plan_of(scenario).step_options, number)
    assert states == ModelStates(*(round(number * each) for each in expected))


@given(st.integers(1, 10**12), st.integers(2, 100))
def test_shards_of_all_replicas_add_up_to_all_states(number: int, replicas: int) -> None:
    scenario = small({"tensor": 1, "pipeline": 1, "data": replicas}, memory={"zero_stage": 3})
    optimizer = model_states(plan_of(scenario).step_options, number).optimizer_bytes
    assert 12 * number <= optimizer * replicas < 12 * (number + replicas)


# ---------------------------------------------------------------------------------- buffers


def buffers_of(scenario: Scenario, stage: int = 0) -> dict[str, int]:
    return memory_of(scenario).stages[stage].buffers_bytes


def test_the_global_buffer_has_the_size_of_its_largest_request() -> None:
    """2sbh that sequence parallelism gathers, or 2as²b/t of QKᵀ."""
    short = {"seq_length": 256}
    gathered = buffers_of(small({"sequence_parallel": True}, model=short))
    assert gathered["global memory buffer"] == 2 * 256 * 4096
    assert buffers_of(small(model=short))["global memory buffer"] == 2 * (32 // 4) * 256**2
    longer = buffers_of(small({"sequence_parallel": True}))
    assert longer["global memory buffer"] == 2 * (32 // 4) * 2048**2


def test_16_bit_gradients_are_copied_for_the_step() -> None:
    """Few other tensors exist then, so the peak is in the optimizer step."""
    tiny = {"num_layers": 1, "seq_length": 4, "vocab_size": 4}
    grid = {"tensor": 1, "pipeline": 1}
    scenario = small(grid, model=tiny, precision={"gradients": "bf16"})
    (stage,) = memory_of(scenario).stages
    number = stage.components_bytes["parameters"] // 2
    assert stage.peak_name == "optimizer step"
    global_bytes = stage.buffers_bytes["global memory buffer"]
    buffers = {name: size for name, size in stage.buffers_bytes.items() if size}
    assert buffers == {"global memory buffer": global_bytes, "gradients in fp32": 4 * number}
    sharded = small(
        grid | {"data": 4}, model=tiny, precision={"gradients": "bf16"}, memory={"zero_stage": 1}
    )
    assert buffers_of(sharded)["gradients in fp32"] == number
    (accumulated,) = memory_of(small(grid, model=tiny)).stages
    assert accumulated.peak_name == "0B0"
    result = simulate(scenario)
    (norm,) = (span for span in result.timeline.spans() if span.name == "gradient norm")
    assert result.memory.stages[0].peak_time_s == norm.start_s


# ------------------------------------------------------------------------- peaks and curves


@given(pipelines())
def test_components_sum_to_the_peak_and_the_allocator_follows_the_profile(
    scenario: Scenario,
) -> None:
    for stage in memory_of(scenario).stages:
        parts = stage.components_bytes
        assert tuple(parts) == COMPONENTS
        assert sum(parts.values()) == stage.peak_bytes
        tensors = stage.peak_bytes - parts["allocator"]
        assert parts["allocator"] == round(2.11 * GIB) + round(0.04 * tensors)
        assert sum(stage.buffers_bytes.values()) == parts["buffers"]
