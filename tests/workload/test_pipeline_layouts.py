"""Stages with layouts, or with layers of their own: contents, parameters, memory, messages."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.scenario import Scenario
from simtrain.scenario.parallelism import chunks_of_layout, layout_of_chunks
from simtrain.studies.search.bounds import Bounds
from simtrain.workload.chunk import whole_parameters
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, Elementwise
from tests.helpers.toys import a100, machine_of, plan_of, run, scenario_with, small


@pytest.mark.parametrize(
    ("layout", "chunks"),
    [
        ("Ettt|(tt|)*29,m|L", ["Ettt", *["tt"] * 29, "m", "L"]),
        ("Et*3|t*0|t*2,L", ["Ettt", "", "ttL"]),
        ("E(t|tt|)*2,tL", ["Et", "tt", "t", "tt", "tL"]),
        ("E(|t)*2mmL", ["E", "t", "tmmL"]),
    ],
)
def test_notation_of_megatron_core(layout: str, chunks: list[str]) -> None:
    """Examples of Megatron-Core's `parse_str_to_list`, and others by hand."""
    assert list(chunks_of_layout(layout)) == chunks


@pytest.mark.parametrize(
    ("own", "layout"),
    [
        ({}, "E(tt|)*3,ttL"),
        ({"interleave": 2}, "Et|(t|)*6,tL"),
        ({"first_stage_layers": 1, "last_stage_layers": 3}, "Et|tt|tt|tttL"),
        ({"first_stage_layers": 2, "last_stage_layers": 2, "interleave": 2}, "E(t|)*7,tL"),
    ],
)
def test_layout_predicts_the_same_as_equal_uneven_stages(own: dict[str, Any], layout: str) -> None:
    grid = {"interleave": own.get("interleave", 1), "data": 2}
    overlap = {"data_parallel": True}
    uneven, laid_out = (
        run(small(grid | which, overlap=overlap)) for which in (own, {"layout": layout})
    )
    assert laid_out.to_dict() | {"scenario": None} == uneven.to_dict() | {"scenario": None}


SIZES = {"hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 128}
PREDICTION = {"mtp_num_layers": 1, "position_embedding": "rope", "normalization": "rms_norm"}


def prediction(layout: str | None, stages: int = 2) -> Scenario:
    return scenario_with(
        SIZES | PREDICTION | {"num_layers": 4},
        parallelism={"pipeline": stages, "layout": layout},
        batch={"micro": 1, "global": stages},
    )


def test_token_prediction_is_on_the_stage_of_the_loss_by_default() -> None:
    written, default = run(prediction("Ett|ttmL")), run(prediction(None))
    assert written.to_dict() | {"scenario": None} == default.to_dict() | {"scenario": None}


def test_the_final_norm_stays_with_the_last_layer_before_token_prediction() -> None:
    """Megatron-Core's `has_final_layernorm_in_this_stage`: the stage of the last layer has the
    norm's h parameters.
    """
    together = plan_of(prediction("Ett|ttmL")).stage_parameters
    apart = plan_of(prediction("Ett|tt|mL", 3)).stage_parameters
    layer = together[0].layers // 2
    assert apart[1].total == 2 * layer + SIZES["hidden_size"]
    assert apart[2].total == together[1].total - apart[1].total


def apart(tied: bool = False, **sections: Any) -> Scenario:
    """Return four layers, an empty stage, and two prediction modules on the last stage but one."""
    return scenario_with(
        SIZES | PREDICTION | {"num_layers": 4, "mtp_num_layers": 2, "tied_embeddings": tied},
        parallelism={"pipeline": 5, "layout": "Ett|tt||mm|L"},
        batch={"micro": 2, "global": 8},
        **sections,
    )


STATE_BYTES = 2 * 2 * SIZES["seq_length"] * SIZES["hidden_size"]


@pytest.mark.parametrize("tied", [False, True])
def test_modules_apart_from_the_loss_hold_the_embedding_and_not_the_output_layer(
    tied: bool,
) -> None:
    """Megatron-Core's `get_embedding_ranks`: the first stage, the stage of the modules, and the
    last stage if tied.
    """
    plan, (v, h) = plan_of(apart(tied)), (SIZES["vocab_size"], SIZES["hidden_size"])
    layer = plan_of(apart(tied)).stage_parameters[1].total - h
    first, last, empty, modules, loss = (stage.total for stage in plan.stage_parameters)
    assert (last, empty, loss) == (layer + h, 0, v * h)
    # Each of two modules has half of `layer`, which counts two layers, a projection from 2 h to h,
    # and three norms.
    assert modules == layer + 2 * (2 * h * h + 3 * h) + v * h
    assert first == layer + v * h
    holders = [0, 3, 4] if tied else [0, 3]
    assert [i for i, stage in enumerate(plan.stage_parameters) if stage.tied] == holders
    reduced = [step["embedding"][0].work for step in plan.steps if "embedding" in step]
    assert len(reduced) == len(holders)
    for work in reduced:
        assert isinstance(work, Collective)
        assert (work.array_bytes, work.group.num_ranks) == (4 * v * h, len(holders))
    assert whole_parameters(plan.model, plan.microbatch).total == plan.num_parameters
    assert plan.num_parameters == sum((first, last, modules)) - v * h + (0 if tied else loss)


def test_modules_apart_from_the_loss_send_all_hidden_states_after_a_shape() -> None:
    """Their stage sends three hidden states of 2 s b h bytes, other stages one. A shape of 24 bytes
    is sent before.
    """
    result, profile = run(apart()), a100()
    assert result.plan.contents.sent_states[:4] == (1, 1, 1, 3)
    link = profile.links.point_to_point
    rate = profile.links.bandwidth.value * link.efficiency.value
    posts_s = profile.host.issue.value
    for span in result.timeline.spans():
        if span.kind == "transfer":
            states = 3 if span.stream in ("link 3->4", "link 4->3") else 1
            expected_s = 2 * link.latency.value + (24 + states * STATE_BYTES) / rate
            assert span.duration_s == pytest.approx(expected_s, rel=1e-9)
        if span.kind == "synchronize":
            assert round(span.duration_s / posts_s, 6) in (2, 4)
    beside = run(result.scenario.replace({"parallelism.layout": "Ett|t|t||mmL"}))
    alone_s = link.latency.value + STATE_BYTES / rate
    spans = [span for span in beside.timeline.spans() if span.kind == "transfer"]
    assert spans
    assert all(span.duration_s == pytest.approx(alone_s, rel=1e-9) for span in spans)


def test_chunks_without_layers_copy_their_input() -> None:
    """The copy reads and writes the input once, and the input is saved. The chunk of the loss also
    saves the copy and the fp32 logits of three losses.
    """
    plan = plan_of(apart())
    empty, loss = (
        [*record_pass(plan.chunk_pass(plan.chunks[place], "F", saves_all=False)).ops]
        for place in (2, 4)
    )
    (copied,) = (op for op in empty if "copy" in op.name)
    assert copied.work == Elementwise(STATE_BYTES, STATE_BYTES)
    (copied,) = (op for op in loss if "copy" in op.name)
    assert copied.work == Elementwise(3 * STATE_BYTES, 3 * STATE_BYTES)
    left = [
        pass_memory(plan.chunk_pass(plan.chunks[place], "F", saves_all=False)).remaining_bytes
        for place in (2, 4)
    ]
    logits = 3 * 2 * SIZES["seq_length"] * SIZES["vocab_size"] * 4
    assert left == [STATE_BYTES, 2 * 3 * STATE_BYTES + logits]
    backward = record_pass(plan.chunk_pass(plan.chunks[4], "B", saves_all=False))
    (joined,) = (op.work for op in backward.ops if op.name == "join hidden states gradients")
    assert joined == Elementwise(3 * STATE_BYTES, 3 * STATE_BYTES, is_backward=True)


@st.composite
def layouts(draw: st.DrawFn) -> Scenario:
    """Draw a small model with any number of layers per chunk, with or without token prediction."""
    stages, chunks = draw(st.integers(3, 4)), draw(st.integers(1, 2))
    inner = [draw(st.integers(0, 3)) for _ in range(stages * chunks - 3)]
    first, last = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    letters = [f"Et*{first}", *(f"t*{layers}" for layers in inner)]
    model = SIZES | {"num_layers": first + sum(inner) + last}
    match draw(st.sampled_from(["none", "beside", "apart"])):
        case "none":
            letters += [f"t*{last}", "L"]
        case "beside":
            letters, model = [*letters, "", f"t*{last}mL"], model | PREDICTION
        case "apart":
            letters, model = [*letters, f"t*{last}m", "L"], model | PREDICTION
    return scenario_with(
        model,
        parallelism={
            "tensor": 2,
            "pipeline": stages,
            "interleave": chunks,
            "layout": "|".join(letters),
            "data": 2,
        },
        batch={"micro": 1, "global": 2 * stages},
        overlap={"data_parallel": draw(st.booleans())},
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )


@settings(max_examples=15)
@given(layouts())
def test_no_layer_is_lost_or_run_twice(scenario: Scenario) -> None:
    """Parameters and FLOPs equal those of one stage. A search's bounds are below the time."""
    chunks = scenario.parallelism.layout_chunks
    assert chunks_of_layout(layout_of_chunks(chunks)) == chunks
    whole = scenario.replace(
        {"parallelism.pipeline": 1, "parallelism.interleave": 1, "parallelism.layout": None}
        | {"schedule": "1f1b"}
    )
    machine = machine_of(a100())
    one, other = (IterationSeconds.of(plan_of(each), machine) for each in (scenario, whole))
    held = [sum(stage.layers for stage in each.plan.stage_parameters) for each in (one, other)]
    assert held[0] == held[1]
    assert one.flops == other.flops
    bounds, plan = Bounds(machine), plan_of(scenario)
    assert bounds.work_s(plan) <= bounds.busy_s(plan) <= run(scenario).iteration_time_s
