"""Training in fp32, fp8 and fp4, and optimizer states in bf16, counted by hand."""

from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate, simulate_memory
from simtrain.workload.chunk import Chunk
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.ops import Op, total_flops, total_model_flops
from simtrain.workload.optimizer import StepOps
from simtrain.workload.work import Collective, Gemm
from tests.helpers.lifetimes import moved
from tests.helpers.toys import (
    chunk_with,
    layer_ops,
    ops_of,
    pass_with,
    plan_of,
    saved_bytes,
    scenario_with,
)

H, HEADS, GROUPS, CHANNELS, FFN, TOKENS, VOCAB = 512, 8, 2, 64, 1024, 1024, 51200
QKV, CONTEXT = (HEADS + 2 * GROUPS) * CHANNELS, HEADS * CHANNELS
WEIGHTS = H * QKV + CONTEXT * H + 3 * H * FFN
LAYER = WEIGHTS + 2 * H
T = 2
RECIPES = ("delayed", "tensorwise", "blockwise")
SHARDED: dict[str, Any] = {
    **{"parallelism": {"data": 2}, "batch": {"micro": 1, "global": 2}},
    "memory": {"zero_stage": 1},
}
IN_NARROW = 2 * TOKENS * H + TOKENS * CONTEXT + TOKENS * FFN
IN_BF16 = (
    *(2 * TOKENS * H, TOKENS * QKV, TOKENS * CONTEXT, TOKENS * 2 * FFN),
    2 * TOKENS * HEADS,  # log-sum-exp in fp32
)
"""Elements that a layer saves, in the type of its products and in bf16."""


def modern(precision: dict[str, Any], tensor: int = T, **sections: Any) -> Scenario:
    """Return two layers like those of Llama 3, with sequence parallelism if tensor exceeds 1."""
    model = {
        "num_layers": 2,
        **{"hidden_size": H, "num_attention_heads": HEADS, "num_query_groups": GROUPS},
        **{"ffn_hidden_size": FFN, "seq_length": TOKENS, "tied_embeddings": False},
        **{"activation": "swiglu", "normalization": "rms_norm", "position_embedding": "rope"},
        **{"biases": False, "hidden_dropout": 0, "attention_dropout": 0},
    }
    grid = {"tensor": tensor, "sequence_parallel": tensor > 1} | sections.pop("parallelism", {})
    given = {"attention_backend": "fused", "cluster": "h100_sxm"} | sections
    return scenario_with(model, parallelism=grid, precision=precision, **given)


def fp8(recipe: str = "delayed", **more: Any) -> dict[str, Any]:
    return {"compute": "fp8", "fp8_recipe": recipe} | more


def sent(ops: tuple[Op, ...]) -> dict[tuple[str, str], int]:
    """Return the bytes of each collective's array, by name and kind."""
    works = ((op.name, op.work) for op in ops)
    return {(x, y.kind.value): y.array_bytes for x, y in works if isinstance(y, Collective)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_changes_no_flops(recipe: str) -> None:
    bf16, ours = layer_ops(modern({})), layer_ops(modern(fp8(recipe)))
    for before, after in zip(bf16, ours, strict=True):
        assert total_flops(after) == total_flops(before) > 0
        assert total_model_flops(after) == total_model_flops(before)


def test_only_products_of_linear_layers_are_in_fp8() -> None:
    scenario = modern(fp8())
    whole = chunk_with(scenario, 2, embedding=True, head=True)
    ops = [op for kind in ("F", "B") for op in ops_of(pass_with(scenario, whole, kind))]
    found = {op.name: op.work for op in ops if isinstance(op.work, Gemm)}
    products = ("QKV", "projection", "gate and up", "down")
    for name in products:
        forward, weight = found.pop(name), found.pop(f"{name} weight gradient")
        for work in (forward, found.pop(f"{name} input gradient")):
            assert (work.dtype, work.element_bytes, work.output_element_bytes) == ("fp8", 1, 2)
        assert (weight.dtype, weight.element_bytes, weight.output_element_bytes) == ("fp8", 1, 4)
        assert weight.accumulate
    assert set(found) == {"logits", "logits input gradient", "logits weight gradient"}
    assert {(work.dtype, work.element_bytes) for work in found.values()} == {("bf16", 2)}


def test_casts_of_delayed_scaling_under_sequence_parallelism() -> None:
    """Norms write fp8. Ranks gather rows in fp8, and transpose the inputs of weight gradients."""
    (forward, backward), own, whole = layer_ops(modern(fp8())), TOKENS // T * H, TOKENS * H
    there, back = moved(forward), moved(backward)
    for norm in ("attention RMS norm", "MLP RMS norm"):
        assert there[norm] == (2 * own, own)
        assert back[f"{norm} gradient"] == (4 * own, 2 * own)
    for name, width in (("projection", CONTEXT), ("down", FFN)):
        elements = TOKENS * width // T
        assert there[f"{name} input to fp8"] == (2 * elements, 2 * elements)
        assert back[f"{name} gradient to fp8"] == (2 * own, own)
        assert back[f"{name} gradient transpose"] == (whole, whole)
    for name, width in (("QKV", QKV), ("gate and up", 2 * FFN)):
        elements = TOKENS * width // T
        assert back[f"{name} gradient to fp8"] == (2 * elements, 2 * elements)
        assert back[f"{name} input transpose"] == (whole, whole)
    assert sum("fp8" in name or "transpose" in name for name in (*there, *back)) == 10
    assert sent(forward) == {
        **{(f"{part} g", "all_gather"): whole for part in ("attention", "MLP")},
        **{(f"{part} ḡ", "reduce_scatter"): 2 * whole for part in ("attention", "MLP")},
    }
    assert sent(backward) == {
        **{(f"{part} g redone", "all_gather"): whole for part in ("attention", "MLP")},
        **{(f"{part} ḡ", "all_gather"): whole for part in ("attention", "MLP")},
        **{(f"{part} g", "reduce_scatter"): 2 * whole for part in ("attention", "MLP")},
    }


@pytest.mark.parametrize(("norms", "number"), [("one_norm", 1), ("two_norms", 2)])
def test_norms_of_parallel_attention_and_mlp_write_fp8(norms: str, number: int) -> None:
    scenario, own = modern(fp8()).replace({"model.parallel_attention_mlp": norms}), TOKENS // T * H
    there = moved(layer_ops(scenario)[0])
    assert [there[name] for name in there if "norm" in name] == [(2 * own, own)] * number


def test_casts_of_tensorwise_scaling_first_find_the_largest_value() -> None:
    """A norm computes the largest value of its output. Ranks that gather a tensor agree on its
    largest value by an all-reduce of one fp32 number.
    """
    (forward, backward), own = layer_ops(modern(fp8("tensorwise"))), TOKENS // T * H
    there, back = moved(forward), moved(backward)
    assert there["MLP RMS norm"] == (2 * own, 2 * own)
    assert there["MLP RMS norm output to fp8"] == (2 * own, own)
    assert "MLP RMS norm output largest" not in there
    assert there["down input largest"] == (2 * TOKENS * FFN // T, 0)
    assert back["QKV gradient largest"] == (2 * TOKENS * QKV // T, 0)
    agreed = {name for (name, kind), size in sent(forward + backward).items() if size == 4}
    assert agreed == {
        *("attention RMS norm output largest", "MLP RMS norm output largest"),
        *("projection gradient largest", "down gradient largest"),
    }


def test_casts_of_blockwise_scaling_write_both_copies_with_their_scales() -> None:
    """Each 128 elements have an fp32 scale. Gradients are gathered row-wise and column-wise."""
    (forward, backward), own = layer_ops(modern(fp8("blockwise"))), TOKENS // T * H

    copy, whole = own + own // 128 * 4, T * (own + own // 128 * 4)
    assert moved(forward)["MLP RMS norm output to fp8"] == (2 * own, 2 * copy)
    assert moved(backward)["down gradient to fp8"] == (2 * own, 2 * copy)
    assert sent(forward)["MLP g", "all_gather"] == whole
    assert sent(backward)["MLP g redone", "all_gather"] == whole
    assert sent(backward)["MLP ḡ", "all_gather"] == 2 * whole
    assert moved(backward)["down gradient transpose"] == (TOKENS * H, TOKENS * H)


@pytest.mark.parametrize(("recipe", "scales"), [("delayed", 0), ("blockwise", 4 / 128)])
def test_a_layer_saves_inputs_of_products_in_one_byte(recipe: str, scales: float) -> None:
    """Fused attention saves its output in bf16, and the projection saves a copy in fp8."""
    saved = saved_bytes(layer_ops(modern(fp8(recipe)))[0])
    assert saved == ((1 + scales) * IN_NARROW + 2 * sum(IN_BF16)) / T
    bf16 = saved_bytes(layer_ops(modern({}))[0])
    assert bf16 == (2 * (IN_NARROW - TOKENS * CONTEXT) + 2 * sum(IN_BF16)) / T


@pytest.mark.parametrize("keeps", [False, True])
def test_memory_of_weights_and_their_fp8_copies(keeps: bool) -> None:
    """A rank has bf16 weights and both fp8 copies, or fp8 weights and the transposed copy."""
    scenario = modern(fp8(fp8_parameters=keeps), **SHARDED)
    stage = simulate_memory(scenario).stages[0]
    weights = 2 * WEIGHTS // T
    total = 2 * VOCAB * H // T + weights + 5 * H
    held = (total - weights) * 2 + weights if keeps else total * 2
    assert stage.states.parameters_bytes == held
    assert stage.buffers_bytes["fp8 copies of weights"] == (1 if keeps else 2) * weights
    step = step_of(scenario)
    assert sent(step["parameter_gather"]) == {("parameter all-gather", "all_gather"): held}


def step_of(scenario: Scenario) -> StepOps:
    (step,) = plan_of(scenario).steps
    return step


def test_states_of_a_precision_aware_optimizer() -> None:
    """6 bytes per parameter: the 16 bits of a master weight that bf16 lacks, and
    two bf16 moments.
    """
    precision = {"exp_avg": "bf16", "exp_avg_sq": "bf16", "main_parameters": "remainder"}
    scenario = modern(precision | {"gradients": "bf16"}, **SHARDED)
    stage = simulate_memory(scenario).stages[0]
    shard = (2 * VOCAB * H // T + 2 * WEIGHTS // T + 5 * H) // 2
    assert stage.states.optimizer_bytes == 6 * shard
    assert "gradients in fp32" not in stage.buffers_bytes


def test_training_in_fp32_has_no_master_weights_and_converts_no_logits() -> None:
    scenario = modern({"compute": "fp32"}, attention_backend="unfused")
    total = 2 * VOCAB * H // T + 2 * WEIGHTS // T + 5 * H
    states = simulate_memory(scenario).stages[0].states
    assert states.parameters_bytes == states.gradients_bytes == 4 * total
    assert states.optimizer_bytes == 8 * total
    head = chunk_with(scenario, head=True)
    ops = [op for kind in ("F", "B") for op in ops_of(pass_with(scenario, head, kind))]
    assert not any("fp32" in op.name for op in ops)
    assert {op.work.dtype for op in ops if isinstance(op.work, Gemm)} == {"fp32"}


def test_mfu_is_relative_to_the_bf16_peak() -> None:
    result = simulate(modern(fp8()))
    both = result.mfu_by_peak
    assert both["bf16"] == result.mfu
    assert both["fp8"] / both["bf16"] == pytest.approx(989.4 / 1979)
    assert list(simulate(modern({})).mfu_by_peak) == ["bf16"]


def test_mxfp8_runs_if_the_profile_has_its_products() -> None:
    """A cast writes both copies, with one byte of scale per 32 elements. Nothing is transposed."""
    scenario = modern(fp8("mxfp8"))
    with pytest.raises(InputError, match="no entry for mxfp8 products"):
        simulate(scenario)
    profile = load_profile("h100_sxm")
    by_dtype = profile.gemm.by_dtype
    by_dtype = by_dtype.model_copy(update={"mxfp8": by_dtype.fp8})
    gemm = profile.gemm.model_copy(update={"by_dtype": by_dtype})
    assert simulate(scenario, profile.model_copy(update={"gemm": gemm})).iteration_time_s > 0
    forward, backward = layer_ops(scenario)
    own = TOKENS // T * H
    assert moved(forward)["MLP RMS norm output to fp8"] == (2 * own, 2 * (own + own // 32))
    assert not any("transpose" in name for name in moved(forward + backward))


# NVFP4. A copy of n numbers has n / 2 bytes, and n / 16 bytes of scales.

FP4 = {"compute": "fp4"}
OWN, WHOLE = TOKENS // T * H, TOKENS * H


def fp4(tensor: int = T, precision: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return two layers in fp4."""
    return modern(FP4 | (precision or {}), tensor, **({"cluster": "gb200"} | sections))


def copy(elements: int) -> int:
    """Return the bytes of numbers and of their scales."""
    return elements // 2 + elements // 16


def test_casts_find_two_largest_values_first_and_write_both_copies() -> None:
    """No norm finds them, because columns are transformed before. Ranks that gather a tensor agree
    on both, two fp32 numbers.
    """
    forward, backward = layer_ops(fp4())
    there, back = moved(forward), moved(backward)
    for norm in ("attention RMS norm", "MLP RMS norm"):
        assert there[norm] == (2 * OWN, 2 * OWN)
        assert there[f"{norm} output largest"] == (2 * OWN, 0)
        assert there[f"{norm} output to fp4"] == (2 * OWN, 2 * copy(OWN))
    for name, width in (("projection", CONTEXT), ("down", FFN)):
        elements = TOKENS * width // T
        assert there[f"{name} input largest"] == (2 * elements, 0)
        assert there[f"{name} input to fp4"] == (2 * elements, 2 * copy(elements))
        assert back[f"{name} gradient to fp4"] == (2 * OWN, 2 * copy(OWN))
    for name, width in (("QKV", QKV), ("gate and up", 2 * FFN)):
        elements = TOKENS * width // T
        assert back[f"{name} gradient to fp4"] == (2 * elements, 2 * copy(elements))
    agreed = {name for (name, kind), size in sent(forward + backward).items() if size == 8}
    assert agreed == {
        *("attention RMS norm output largest", "MLP RMS norm output largest"),
        *("projection gradient largest", "down gradient largest"),
    }


def test_ranks_gather_fp4_and_rearrange_gathered_columns() -> None:
    """Rows for forward products, columns for weight gradients, both of a row-parallel gradient."""
    forward, backward = layer_ops(fp4())
    assert sent(forward)["MLP g", "all_gather"] == copy(WHOLE)
    assert sent(forward)["MLP ḡ", "reduce_scatter"] == 2 * WHOLE
    assert sent(backward)["MLP g redone", "all_gather"] == copy(WHOLE)
    assert sent(backward)["MLP ḡ", "all_gather"] == 2 * copy(WHOLE)
    back = moved(backward)
    transposes = {name: size for name, size in back.items() if name.endswith("transpose")}
    assert transposes == dict.fromkeys(
        (f"{name} {tensor} transpose" for name, tensor in GATHERED), (copy(WHOLE), copy(WHOLE))
    )
    assert not any("transpose" in name for name in moved(forward))


GATHERED = (
    *(("QKV", "input"), ("gate and up", "input")),
    *(("projection", "gradient"), ("down", "gradient")),
)


def test_a_layer_saves_columns_of_inputs_in_four_bits() -> None:
    assert saved_bytes(layer_ops(fp4())[0]) == (copy(IN_NARROW) + 2 * sum(IN_BF16)) / T


def test_weights_stay_in_bf16_beside_both_fp4_copies() -> None:
    """ZeRO gathers bf16. Then a pass finds the largest value, and a kernel writes both copies."""
    scenario = fp4(**SHARDED)
    stage, weights = simulate_memory(scenario).stages[0], 2 * WEIGHTS // T
    total = 2 * VOCAB * H // T + weights + 5 * H
    assert stage.states.parameters_bytes == 2 * total
    assert stage.buffers_bytes["fp4 copies of weights"] == 2 * copy(weights)
    step = step_of(scenario)
    assert sent(step["parameter_gather"]) == {("parameter all-gather", "all_gather"): 2 * total}
    assert moved(step["weight_cast"]) == {
        "weights largest": (2 * weights, 0),
        "weights to fp4": (2 * weights, 2 * copy(weights)),
    }


# ------------------------------------------------------------------------------ layers in bf16

ENDS = {"first_layers_bf16": 1, "last_layers_bf16": 2}


@pytest.mark.parametrize("precision", [FP4, fp8("tensorwise")])
def test_layers_at_both_ends_are_those_of_a_model_in_bf16(precision: dict[str, Any]) -> None:
    def layers(precision: dict[str, Any]) -> list[Any]:
        scenario = modern(precision, cluster="gb200").replace({"model.num_layers": 8})
        runs = gpt_blocks(scenario).runs[1:-1]
        chunks = [Chunk(((layer, 1),)) for layer, times in runs for _ in range(times)]
        return [[ops_of(pass_with(scenario, x, kind)) for kind in ("F", "B")] for x in chunks]

    mixed, narrow, wide = layers(precision | ENDS), layers(precision), layers({})

    def names(ops: Any) -> list[tuple[Any, Any]]:
        return [(op.name, op.work) for kind in ops for op in kind]

    for number in range(8):
        expected = wide if number < 1 or number >= 6 else narrow
        assert names(mixed[number]) == names(expected[number])
