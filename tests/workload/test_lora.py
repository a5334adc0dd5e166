"""LoRA: parameters, FLOPs, states, saved bytes and communication, counted by hand."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.iteration.memory.buffers import rank_states
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.workload.chunk import whole_parameters
from simtrain.workload.ops import Op, total_model_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective
from tests.helpers.toys import plan_of, scenario_with

LLAMA: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "ffn_hidden_size": 96,
    "seq_length": 32,
    "vocab_size": 256,
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "none",
    "tied_embeddings": False,
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
FUSED_QKV, FC1 = 64 + 2 * 2 * 16, 2 * 96
SIZES = {
    "linear_qkv": (64, FUSED_QKV),
    "linear_proj": (64, 64),
    "linear_fc1": (64, FC1),
    "linear_fc2": (96, 64),
}
"""Inputs and outputs of each linear layer."""
ALL = [*SIZES]
TOKENS = 2 * 32


def tuned(modules: list[str] = ALL, rank: int = 8, **sections: Any) -> Scenario:
    """Return a Llama of three layers with adapters; two sequences a microbatch."""
    lora = {"rank": rank, "modules": modules} | sections.pop("lora", {})
    options = {"attention_backend": "fused", "batch": {"micro": 2, "global": 4}}
    return scenario_with(LLAMA | {"lora": lora}, **options | sections)


def layer_ops(scenario: Scenario) -> tuple[list[Op], list[Op]]:
    """Return the forward and backward ops of a layer whose input needs a gradient."""
    plan, (first, layer) = plan_of(scenario), layers(scenario)
    assert not first.input_has_gradient
    forward, backward = (
        [*record_pass(replace(plan.layers_pass(1, kind), chunk=chunk_with(layer))).ops]
        for kind in ("F", "B")
    )
    return forward, backward


def layers(scenario: Scenario) -> list[Any]:
    """Return the different layers: the first, and the others."""
    return [block for block, _ in plan_of(scenario).model.runs if block.is_unit]


def chunk_with(layer: Any) -> Any:
    return type(plan_of(tuned()).model)(((layer, 1),))


@given(
    st.sets(st.sampled_from(ALL), min_size=1),
    st.sampled_from([1, 2]),
    st.integers(1, 8),
    st.booleans(),
)
def test_parameters_by_hand(modules: set[str], t: int, rank: int, sequence: bool) -> None:
    """An adapter has rank · (inputs + outputs) parameters, and each rank 1/t of one of its two
    matrices' outputs or inputs.
    """
    split = {"tensor": t, "sequence_parallel": t > 1 and sequence}
    scenario = tuned(sorted(modules), rank * t, parallelism=split)
    plan = plan_of(scenario)
    whole = whole_parameters(plan.model, plan.microbatch)
    assert whole.frozen
    by_hand = 3 * rank * t * sum(sum(SIZES[module]) for module in modules)
    assert whole.trained.total == by_hand
    dense = plan_of(scenario.replace({"model.lora": None}))
    assert whole.frozen.total == dense.num_parameters
    (stage,) = plan.stage_parameters
    sizes = [(*SIZES[module], module in ("linear_proj", "linear_fc2")) for module in modules]
    on_rank = 3 * rank * sum(a + b for a, b, _ in sizes)
    assert stage.trained.total == on_rank
    # Norms are frozen, and adapters are divided: no gradient is a partial sum.
    assert stage.trained.partial_sums == 0


@given(st.sets(st.sampled_from(ALL), min_size=1), st.sampled_from([1, 2]), st.booleans())
def test_flops_by_hand(modules: set[str], t: int, sequence: bool) -> None:
    """Of frozen layers the backward pass has the input gradient, of adapters both products."""
    rank, split = 8, {"tensor": t, "sequence_parallel": t > 1 and sequence}
    forward, backward = layer_ops(tuned(sorted(modules), rank, parallelism=split))
    weights = sum(a * b for a, b in SIZES.values())
    adapters = rank * sum(sum(SIZES[module]) for module in modules)
    attention = 4 * TOKENS * 32 * 64
    assert total_model_flops(forward) * t == 2 * TOKENS * (weights + adapters) + attention
    once = 2 * TOKENS * (weights + 2 * adapters)
    assert total_model_flops(backward) * t == once + 2 * attention


def test_the_backward_pass_ends_at_the_first_adapter() -> None:
    """The first layer has no gradient of its input: no norm's, no QKV's and no adapter's."""
    scenario = tuned()
    plan = plan_of(scenario)
    (backward,) = (pass_ for pass_ in plan.passes.values() if pass_.kind == "B")
    names = [op.name for op in record_pass(backward).ops]
    assert names.count("QKV input gradient") == names.count("QKV adapter in input gradient") == 2
    assert names.count("attention RMS norm gradient") == 2
    assert names.count("QKV adapter in weight gradient") == names.count("down input gradient") == 3
    assert not [name for name in names if "embedding" in name]
    whole = {op.name for op in record_pass(backward).ops if "weight gradient" in op.name}
    assert whole and all("adapter" in name for name in whole)
    # A full recompute needs the gradient of the first layer's input (Megatron-Bridge).
    recomputed = plan_of(scenario.replace({"recompute": "full"}))
    assert [block.input_has_gradient for block, _ in recomputed.model.runs if block.is_unit] == [1]


@pytest.mark.parametrize("modules", [ALL, ["linear_qkv"], ["linear_fc2"], ["linear_proj"]])
def test_saved_bytes_by_hand(modules: list[str]) -> None:
    """Norms save their inputs, attention its operands, output and sums, SwiGLU its input. Linear
    layers save nothing; adapters save their inputs, which attention may save too, and x A.
    """
    h, rank, two = 64, 8, 2 * TOKENS
    saved = 2 * two * h + two * FUSED_QKV + two * h + 4 * TOKENS * 4 + two * FC1
    saved += sum(two * rank for _ in modules)
    inputs = {"linear_qkv": h, "linear_proj": 0, "linear_fc1": h, "linear_fc2": 96}
    saved += sum(two * inputs[module] for module in modules)
    plan, (_, layer) = plan_of(scenario := tuned(modules)), layers(tuned(modules))
    forward = replace(plan.layers_pass(1, "F"), chunk=chunk_with(layer))
    assert pass_memory(forward).remaining_bytes == saved
    assert pass_memory(replace(forward, kind="B")).remaining_bytes == 0
    dense = plan_of(scenario.replace({"model.lora": None})).layers_pass(1, "F")
    # All four linear layers save their inputs, one of them with attention.
    trained = 4 * two * h + two * FUSED_QKV + two * h + 4 * TOKENS * 4 + two * (FC1 + 96)
    assert pass_memory(dense).remaining_bytes == trained


@pytest.mark.parametrize(("stage", "replicas"), [(0, 1), (1, 4)])
def test_states_by_hand(stage: int, replicas: int) -> None:
    """Frozen parameters have 2 bytes; adapters 2, gradients in fp32 4, and 12 sharded bytes."""
    scenario = tuned(
        parallelism={"data": replicas},
        memory={"zero_stage": stage},
        batch={"micro": 2, "global": 8},
    )
    plan = plan_of(scenario)
    (parameters,) = plan.stage_parameters
    assert parameters.frozen
    trained = 3 * 8 * sum(map(sum, SIZES.values()))
    states = rank_states(plan.step_options, parameters)
    assert states.parameters_bytes == 2 * (parameters.frozen.total + trained)
    assert states.gradients_bytes == 4 * trained
    assert states.optimizer_bytes == 12 * trained // replicas
    moved = {
        op.work.array_bytes
        for ops in plan.steps[0].values()
        for op in ops
        if isinstance(op.work, Collective) and "norm" not in op.name
    }
    assert moved == ({4 * trained, 2 * trained} if stage else set())


@pytest.mark.parametrize("sequence", [False, True])
def test_communication_by_hand(sequence: bool) -> None:
    """Elements that tensor-parallel ranks exchange in a layer, by Megatron-Bridge's adapters.

    Column-parallel: x A is gathered. Row-parallel: x A is summed, x A B gathered. In the backward
    pass gradients of x A are summed. With sequence parallelism, the base layer and its adapter
    share the gathered input, so that one reduce-scatter sums both input gradients.
    """
    split = {"tensor": 2, "sequence_parallel": sequence}
    h, rank = 64, 8
    found = [
        sorted(
            (str(op.work.kind), op.work.array_bytes // (2 * TOKENS))
            for op in ops
            if isinstance(op.work, Collective)
        )
        for ops in layer_ops(tuned(parallelism=split))
    ]
    low_rank = [("all_reduce", rank)] * 2
    gathers = [("all_gather", rank)] * 2 + [("all_gather", h)] * 2
    if not sequence:
        assert found[0] == sorted([*gathers, *low_rank, *[("all_reduce", h)] * 2])
        # f of the layer and of its adapter, for both column-parallel layers.
        assert found[1] == sorted([*[("all_reduce", rank)] * 4, *[("all_reduce", h)] * 4])
        return
    assert found[0] == sorted(
        [*gathers, *low_rank, *[("all_gather", h)] * 2, *[("reduce_scatter", h)] * 2]
    )
    gathered = [("all_gather", h)] * 4  # gradients of both row-parallel layers and adapters
    assert found[1] == sorted(
        [*[("all_reduce", rank)] * 4, *gathered, *[("reduce_scatter", h)] * 2]
    )


def test_frozen_layers_in_fp8_cast_once_and_adapters_multiply_in_bf16() -> None:
    forward, backward = layer_ops(
        tuned(precision={"compute": "fp8"}, cluster="h100_sxm", software="megatron_core")
    )
    dtypes = {op.name: op.work.dtype for op in [*forward, *backward] if hasattr(op.work, "dtype")}
    assert {dtypes[name] for name in dtypes if "adapter" in name} == {"bf16"}
    assert dtypes["QKV"] == dtypes["down input gradient"] == "fp8"
    assert not [op.name for op in [*forward, *backward] if "transpose" in op.name]
    casts = {op.name: op.work.moved_bytes for op in forward if "to fp8" in op.name}
    assert casts["QKV input to fp8"] == (2 + 1) * TOKENS * 64


def total(ops: list[Op], kind: str) -> int:
    """Add up the arrays of a kind of collectives, in bytes."""
    works = [op.work for op in ops if isinstance(op.work, Collective)]
    return sum(work.array_bytes for work in works if work.kind == kind)


@given(st.sets(st.sampled_from(ALL), min_size=1), st.sampled_from([1, 2]), st.booleans())
def test_separate_projections_have_an_adapter_each(
    modules: set[str], t: int, sequence: bool
) -> None:
    """Column-parallel ranks hold A whole and 1/t of B, row-parallel ones 1/t of A and B whole, and
    nothing is communicated for it. Each product of the layer has an adapter of its own.
    """
    rank, split = 8, {"tensor": t, "sequence_parallel": t > 1 and sequence}
    options: dict[str, Any] = {"software": "torchtitan", "parallelism": split}
    scenario = tuned(sorted(modules), rank, **options)
    plan, (forward, backward) = plan_of(scenario), layer_ops(scenario)
    parts = {"linear_qkv": (64, 32, 32), "linear_fc1": (96, 96), "linear_proj": (64,)}
    sizes = [(SIZES[module][0], n) for module in modules for n in parts.get(module, (64,))]
    columns = {"linear_qkv", "linear_fc1"} & modules
    wide = [(SIZES[module][0], n) for module in columns for n in parts[module]]
    rows = [SIZES[module] for module in modules - columns]
    assert plan.num_trained_parameters == 3 * rank * sum(map(sum, sizes))
    (stage,) = plan.stage_parameters
    whole = rank * (sum(a for a, _ in wide) + sum(n for _, n in rows))
    divided = rank * (sum(n for _, n in wide) + sum(a for a, _ in rows)) // t
    assert stage.trained.total == 3 * (whole + divided)
    assert stage.trained.partial_sums == 3 * whole
    weights, adapters = sum(a * b for a, b in SIZES.values()), rank * sum(map(sum, sizes))
    attention = 4 * TOKENS * 32 * 64
    assert total_model_flops(forward) * t == 2 * TOKENS * (weights + adapters) + attention
    assert total_model_flops(backward) * t == 2 * TOKENS * (weights + 2 * adapters) + 2 * attention
    # f and f-bar of attention and MLP, or g and g-bar.
    once = 2 * 2 * TOKENS * 64 * (t > 1)
    kinds = ("all_gather", "reduce_scatter") if split["sequence_parallel"] else ("all_reduce",)
    assert all(total(ops, kind) == once for ops in (forward, backward) for kind in kinds)
    (reduced,) = plan.steps[0].get("sequence_parallel", (None,))
    assert (reduced.work.array_bytes if reduced else 0) == 4 * 3 * whole * (t > 1)


@pytest.mark.parametrize("software", ["megatron_core", "torchtitan", "deepspeed_2021"])
@pytest.mark.parametrize("stage", [2, 3])
def test_sharded_weights_of_a_frozen_model(software: str, stage: int) -> None:
    """Each pass gathers all weights (stage 3), and reduces the gradients of adapters alone."""
    n, shards = 4, {"parallelism": {"data": 4}, "memory": {"zero_stage": stage}}
    scenario = tuned(software=software, batch={"micro": 2, "global": 16}, **shards)
    plan = plan_of(scenario)
    (parameters,) = plan.stage_parameters
    trained, everything = parameters.trained.total, parameters.total
    fully, lists = scenario.fully_shards, scenario.lists_tensors
    passes = {pass_.kind: [*record_pass(pass_).ops] for pass_ in plan.passes.values()}
    assert total(passes["B"], "reduce_scatter") == plan.microbatch.gradient_bytes * trained
    assert not total(passes["F"], "reduce_scatter")
    for ops in passes.values() if not lists else ():  # DeepSpeed keeps small tensors unsharded
        assert total(ops, "all_gather") == 2 * everything * (stage == 3)
    states = rank_states(plan.step_options, parameters)
    held = everything // (n if stage == 3 else 1)
    assert states.parameters_bytes == held * (4 if fully else 2)
    assert states.gradients_bytes == 4 * trained // n
    assert states.optimizer_bytes == trained // n * (8 if fully else 12)
    gathered = [op for op in plan.steps[0].get("parameter_gather", ()) if stage == 2]
    assert total(gathered, "all_gather") == 2 * trained * (stage == 2)


@given(
    st.sets(st.sampled_from(ALL), min_size=1),
    st.sampled_from([0, 48]),
    st.sampled_from([1, 2, 4]),
)
def test_experts_of_a_rank_share_an_adapter(modules: set[str], shared: int, expert: int) -> None:
    """It multiplies all rows of the rank. Frozen experts have no weight gradients; ranks of experts
    sum the adapters' gradients over experts too, which have as many replicas as other parameters.
    """
    rank, top_k, ffn, experts = 8, 2, 48, 8
    mixture = {"num": experts, "top_k": top_k, "ffn_hidden_size": ffn}
    mixture["shared_ffn_hidden_size"] = shared
    model = {name: value for name, value in LLAMA.items() if name != "ffn_hidden_size"}
    model |= {"experts": mixture, "lora": {"rank": rank, "modules": sorted(modules)}}
    scenario = scenario_with(
        model,
        attention_backend="fused",
        batch={"micro": 2, "global": 16},
        parallelism={"data": 4, "expert": expert},
    )
    plan, (forward, backward) = plan_of(scenario), layer_ops(scenario)
    attention = {name: SIZES[name] for name in ("linear_qkv", "linear_proj")}
    routed = {"linear_fc1": (64, 2 * ffn), "linear_fc2": (ffn, 64)}
    beside = {"linear_fc1": (64, 2 * shared), "linear_fc2": (shared, 64)} if shared else {}

    def low_rank(sizes: dict[str, tuple[int, int]]) -> int:
        return rank * sum(sum(size) for name, size in sizes.items() if name in modules)

    adapters = [low_rank(sizes) for sizes in (attention, routed, beside)]
    whole = whole_parameters(plan.model, plan.microbatch)
    assert (whole.trained.total, whole.trained.experts) == (3 * sum(adapters), 3 * adapters[1])
    dense = plan_of(scenario.replace({"model.lora": None}))
    assert whole.frozen and whole.frozen.total == dense.num_parameters
    assert plan.num_active_parameters == dense.num_active_parameters + whole.trained.total
    weights = [sum(a * b for a, b in sizes.values()) for sizes in (attention, routed, beside)]
    weights[0] += 64 * experts  # the router
    rows = (1, top_k, 1)
    products = 2 * TOKENS * sum(n * w for n, w in zip(rows, weights, strict=True))
    of_adapters = 2 * TOKENS * sum(n * w for n, w in zip(rows, adapters, strict=True))
    scores = 4 * TOKENS * 32 * 64
    assert total_model_flops(forward) == products + of_adapters + scores
    assert total_model_flops(backward) == products + 2 * of_adapters + 2 * scores
    found = [op.work for op in plan.steps[0].get("sequence_parallel", ())]
    moved = [work.array_bytes for work in found if isinstance(work, Collective)]
    assert moved == [4 * 3 * adapters[1]] * (expert > 1 and adapters[1] > 0)


def test_latent_attention_and_token_prediction_have_the_adapters_of_their_layers() -> None:
    """Latent attention has no linear_qkv; a layer of token prediction has adapters as all do."""
    latent = LLAMA | {"latent_attention": {"kv_lora_rank": 16}, "num_query_groups": 4}
    sizes = [128 * 4 + 64, *(sum(SIZES[name]) for name in ("linear_fc1", "linear_fc2"))]
    options: dict[str, Any] = {"attention_backend": "fused", "software": "megatron_core"}
    scenario = scenario_with(latent | {"lora": {"rank": 8}}, **options)
    assert plan_of(scenario).num_trained_parameters == 3 * 8 * sum(sizes)
    predicting = tuned(**options).replace(
        {"model.mtp_num_layers": 1, "model.position_embedding": "rope"}
    )
    plan = plan_of(predicting)
    assert plan.num_trained_parameters == 4 * 8 * sum(map(sum, SIZES.values()))
    (backward,) = (pass_ for pass_ in plan.passes.values() if pass_.kind == "B")
    names = [op.name for op in record_pass(backward).ops]
    assert names.count("QKV adapter in weight gradient") == 4
    assert names.count("logits input gradient") == 2
    assert not [name for name in names if "weight gradient" in name and "adapter" not in name]


def test_with_userbuffers_an_adapted_column_gathers_twice_and_rows_stay_pipelined() -> None:
    """Transformer Engine pipelines no gather whose norm's output the adapter reads too. The
    reductions of row-parallel layers and the gathers of their gradients stay in userbuffers.
    """
    split = {"tensor": 2, "sequence_parallel": True}
    overlap = {"userbuffers": True, "tensor_parallel": True}
    scenario = tuned(parallelism=split, overlap=overlap, software="megatron_core")
    forward, backward = layer_ops(scenario)
    h, rank = 2 * TOKENS * 64, 2 * TOKENS * 8
    # Of both columns: x twice and x A. Of both rows: x A B.
    assert total(forward, "all_gather") == 2 * (2 * h + rank) + 2 * h
    assert total(forward, "reduce_scatter") == total(backward, "reduce_scatter") / 2 == 2 * h
    assert not total(forward, "copy")
    assert total(backward, "copy") == 2 * h // 2  # the other rank's half of each row's gradient
    plain = layer_ops(scenario.replace({"overlap.userbuffers": False}))
    assert [*map(total_model_flops, plain)] == [*map(total_model_flops, (forward, backward))]
