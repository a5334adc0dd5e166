"""Training in NVFP4, and layers in bf16 in a model in fp8 or fp4, counted by hand.

A copy of n numbers has n / 2 bytes, and n / 16 bytes of scales.
"""

from typing import Any

import pytest

from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_memory
from simtrain.workload.chunk import Chunk
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.ops import total_flops
from tests.helpers.expert_models import layer
from tests.helpers.toys import layer_ops, ops_of, pass_with, saved_bytes
from tests.workload.test_fp8_experts import experts_in, kernels, products
from tests.workload.test_precision import (
    CONTEXT,
    FFN,
    HEADS,
    QKV,
    TOKENS,
    VOCAB,
    WEIGHTS,
    H,
    T,
    fp8,
    modern,
    moved,
    named,
    sent,
    step_of,
)

FP4 = {"compute": "fp4"}
OWN, WHOLE = TOKENS // T * H, TOKENS * H


def fp4(tensor: int = T, precision: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return two layers in fp4."""
    return modern(FP4 | (precision or {}), tensor, **({"cluster": "gb200"} | sections))


def copy(elements: int) -> int:
    """Return the bytes of numbers and of their scales."""
    return elements // 2 + elements // 16


# ------------------------------------------------------------------------------------- products


def test_fp4_changes_no_flops_and_the_type_of_three_products_a_layer() -> None:
    bf16, ours = layer_ops(modern({}, cluster="gb200")), layer_ops(fp4())
    for before, after in zip(bf16, ours, strict=True):
        assert total_flops(after) == total_flops(before) > 0
    forward, backward = map(named, ours)
    for op in (forward["down"], backward["down input gradient"], backward["down weight gradient"]):
        assert (op.work.dtype, op.work.element_bytes) == ("nvfp4", 0.5)  # type: ignore[union-attr]
    inputs, outputs = FFN // T, H
    result = 2 * TOKENS * outputs
    read = (TOKENS * inputs + inputs * outputs) // 2
    assert forward["down"].work.moved_bytes == read + result  # type: ignore[union-attr]


# --------------------------------------------------------------------------- casts and gathers


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


# -------------------------------------------------------------------------------------- memory


def test_a_layer_saves_columns_of_inputs_in_four_bits() -> None:
    in_fp4 = 2 * TOKENS * H + TOKENS * CONTEXT + TOKENS * FFN
    in_bf16 = (
        *(2 * TOKENS * H, TOKENS * QKV, TOKENS * CONTEXT, TOKENS * 2 * FFN),
        2 * TOKENS * HEADS,  # log-sum-exp in fp32
    )
    assert saved_bytes(layer_ops(fp4())[0]) == (copy(in_fp4) + 2 * sum(in_bf16)) / T


def test_weights_stay_in_bf16_beside_both_fp4_copies() -> None:
    """ZeRO gathers bf16. Then a pass finds the largest value, and a kernel writes both copies."""
    scenario = fp4(
        parallelism={"data": 2}, batch={"micro": 1, "global": 2}, memory={"zero_stage": 1}
    )
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


# ------------------------------------------------------------------------------------- experts


def test_rows_of_each_expert_are_padded_to_a_multiple_of_64() -> None:
    """Two experts have 31.5 padded rows on average; their products read four bits."""
    scenario = experts_in(FP4, cluster="gb200")
    work = products(scenario, "F")["experts up"]
    assert (work.dtype, work.element_bytes) == ("nvfp4", 0.5)
    assert work.rows == products(experts_in({}), "F")["experts up"].rows + 63  # type: ignore[union-attr]
    casts = kernels(layer(scenario))
    elements = work.rows * work.inputs  # type: ignore[union-attr]
    assert casts["experts up input to fp4"] == (2 * elements, 2 * copy(elements))


# ------------------------------------------------------------------------------ layers in bf16

ENDS = {"first_layers_bf16": 1, "last_layers_bf16": 2}


@pytest.mark.parametrize("precision", [FP4, fp8("tensorwise")])
def test_layers_at_both_ends_are_those_of_a_model_in_bf16(precision: dict[str, Any]) -> None:
    def layers(precision: dict[str, Any]) -> list[Any]:
        scenario = modern(precision, cluster="gb200").replace({"model.num_layers": 8})
        runs = gpt_blocks(scenario).runs[1:-1]
        chunks = [(layer, scenario) for layer, times in runs for _ in range(times)]
        return [
            [ops_of(pass_with(scenario, Chunk(((layer, 1),)), kind)) for kind in ("F", "B")]
            for layer, scenario in chunks
        ]

    mixed, narrow, wide = layers(precision | ENDS), layers(precision), layers({})

    def names(ops: Any) -> list[tuple[Any, Any]]:
        return [(op.name, op.work) for kind in ops for op in kind]

    for number in range(8):
        expected = wide if number < 1 or number >= 6 else narrow
        assert names(mixed[number]) == names(expected[number])
