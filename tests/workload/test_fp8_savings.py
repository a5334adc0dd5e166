"""What DeepSeek-V3 saves in fp8 or 12 bits, and recompute in fp8: bytes and kernels by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_memory
from simtrain.workload.ops import Op, Phase, total_model_flops
from tests.helpers.expert_models import layer
from tests.helpers.lifetimes import moved
from tests.helpers.toys import plan_of
from tests.workload.test_fp8_experts import (
    ATTENTION,
    EXPERT,
    HEADS,
    LATENT,
    OWN,
    ROWS,
    TOKENS,
    F,
    H,
    experts_in,
    fp8,
    saves,
)

SCALE = 1 + 4 / 128
"""Bytes of an fp8 number with its share of a scale."""
PADDED = ROWS + OWN * 15 // 2
RECAST = {"stack": "megatron_core", "fp8_columns": "recast"}
DEEPEP = {"expert_dispatch": "deepep"}
OUTPUT = HEADS * H // HEADS
"""Channels of attention's output."""


def recasting(precision: dict[str, Any] | None = None, **more: Any) -> Scenario:
    """Return the layer with experts, whose copies by columns are cast from rows."""
    return experts_in(fp8("blockwise", **(precision or {})), software=RECAST, **more)


def latent(recipe: str, **more: Any) -> Scenario:
    """Return a dense layer with latent attention on one rank."""
    model = {"latent_attention": LATENT, "qk_norm": True, "experts": None}
    return experts_in(fp8(recipe), model=model, grid={"expert": 1, "data": 2}, **more)


def kept_bytes(scenario: Scenario, kind: Any = "F") -> int:
    return pass_memory(plan_of(scenario).layers_pass(1, kind)).remaining_bytes


def named(scenario: Scenario, kind: Any, part: str) -> list[Op]:
    return [op for op in layer(scenario, kind) if part in op.name]


# ----------------------------------------------------------------------------------- recompute


@pytest.mark.parametrize(
    ("recipe", "scale", "again"),
    [("tensorwise", 1.0, 2), ("blockwise", SCALE, 1), ("mxfp8", 1 + 1 / 32, 1)],
)
def test_a_recomputed_activation_is_cast_again(recipe: str, scale: float, again: int) -> None:
    """The second product of experts saves its input in bf16, which is discarded. The forward pass
    casts rows. The backward pass casts what the weight gradient reads: columns, or both copies if
    the tensor has one scale, which a further pass finds.
    """
    some = experts_in(fp8(recipe), recompute={"modules": ["moe_act"]}, **_blackwell(recipe))
    none = some.replace({"recompute": "none"})
    rows = ROWS + OWN * (31 if recipe == "mxfp8" else 15) // 2
    elements = rows * F
    assert kept_bytes(none) - kept_bytes(some) == scale * elements
    assert moved(layer(some))["experts down input to fp8"] == (2 * elements, scale * elements)
    back = moved(layer(some, "B"))
    assert back["experts SwiGLU"][1] == 2 * elements
    assert back["experts down input to fp8 again"] == (2 * elements, again * scale * elements)
    largest = (2 * elements, 0) if recipe == "tensorwise" else None
    assert back.get("experts down input largest again") == largest


def _blackwell(recipe: str) -> dict[str, Any]:
    return {"cluster": "b200_sxm"} if recipe == "mxfp8" else {}


# ------------------------------------------------------------------------------- copies by columns


def test_columns_are_cast_from_saved_rows() -> None:
    """Inputs: one copy is written, and in the backward pass read and written by columns.
    Gradients: two kernels read bf16, and write one copy each.
    """
    there, back = (moved(layer(recasting(), kind)) for kind in ("F", "B"))
    for name, width, gradient in (("up", H, 2 * F), ("down", F, H)):
        elements, size = PADDED * width, SCALE * PADDED * width
        assert there[f"experts {name} input to fp8"] == (2 * elements, size)
        assert back[f"experts {name} input to columns"] == (size, size)
        cast = 2 * PADDED * gradient, SCALE * PADDED * gradient
        assert back[f"experts {name} gradient to fp8"] == cast
        assert back[f"experts {name} gradient to fp8 by columns"] == cast
    # A norm is part of the QKV layer, which casts its output.
    elements = TOKENS * H
    assert there["attention RMS norm output to fp8"] == (2 * elements, SCALE * elements)
    assert back["QKV input to columns"] == (SCALE * elements,) * 2
    both = experts_in(fp8("blockwise"))
    assert saves(recasting()) == saves(both)


def test_weights_keep_one_copy_and_are_transposed_in_each_backward_pass() -> None:
    scenario = recasting({"fp8_parameters": True}, memory={"zero_stage": 1})
    back = moved(layer(scenario, "B"))
    sizes = {"QKV": 3 * H * H, "projection": H * H}
    sizes |= {"experts up": OWN * 2 * H * F, "experts down": OWN * H * F}
    for name, weights in sizes.items():
        assert back[f"{name} weight transpose"] == (weights, weights)
    assert "fp8 copies of weights" not in simulate_memory(scenario).stages[0].buffers_bytes
    kept = recasting(memory={"zero_stage": 1})
    weights = ATTENTION + OWN * EXPERT
    copies = simulate_memory(kept).stages[0].buffers_bytes["fp8 copies of weights"]
    assert copies == weights + weights // 128**2 * 4


# -------------------------------------------------------------------------------- narrow copies


@pytest.mark.parametrize(("recipe", "scale"), [("delayed", 1.0), ("blockwise", SCALE)])
def test_the_input_of_swiglu_is_saved_in_fp8(recipe: str, scale: float) -> None:
    """It is cast in the forward pass, and cast back in the backward pass."""
    scenario = experts_in(fp8(recipe, fp8_activation_inputs=True))
    elements = PADDED * 2 * F
    saved = saves(scenario)
    assert "experts up output" not in saved
    copies = [size for name, size in saved.items() if name.startswith("experts up output in 8")]
    assert sum(copies) == scale * elements
    cast, back = (moved(layer(scenario, kind)) for kind in ("F", "B"))
    assert cast["experts up output to 8 bits"] == (2 * elements, scale * elements)
    assert back["experts up output from 8 bits"] == (scale * elements, 2 * elements)


def test_recompute_of_swiglu_starts_from_fp8_only_if_columns_are_recast() -> None:
    """DeepSeek-V3 saves fp8, and casts back before it recomputes. Megatron-LM's checkpoint saves
    the 16-bit input, and its recompute casts it to fp8 and back.
    """
    elements = PADDED * 2 * F
    narrow = {"fp8_activation_inputs": True}
    modules = {"modules": ["moe_act"]}
    ours = recasting(narrow, recompute=modules)
    theirs = experts_in(fp8("blockwise", **narrow), recompute=modules)
    assert kept_bytes(theirs) - kept_bytes(ours) == 2 * elements - SCALE * elements
    for scenario, again in (
        (ours, ["experts up output from 8 bits", "experts SwiGLU"]),
        (theirs, ["experts up output to 8 bits", "experts SwiGLU"]),
    ):
        repeated = [op.name for op in layer(scenario, "B") if op.phase is Phase.RECOMPUTE]
        assert repeated == again
        assert len(named(scenario, "B", "from 8 bits")) == 1


def test_attention_and_its_projection_share_a_copy_of_12_bits() -> None:
    """One kernel writes 1.5 bytes for the backward passes and fp8 rows for the projection."""
    elements = TOKENS * OUTPUT
    scenario = recasting({"attention_output_bits": 12})
    wide = recasting()
    copy = 1.5 * elements + elements // 128 * 4
    assert kept_bytes(wide) - kept_bytes(scenario) == 2 * elements + SCALE * elements - copy
    there, back = (moved(layer(scenario, kind)) for kind in ("F", "B"))
    assert there["attention output to 12 bits"] == (2 * elements, copy + SCALE * elements)
    assert "projection input to fp8" not in there
    assert back["attention output from 12 bits"] == (copy, 2 * elements)
    assert back["projection input to columns"] == (copy, SCALE * elements)


# ------------------------------------------------------------------------------------------ laws


@given(
    st.lists(st.sampled_from(["moe_act", "shared_experts", "moe"]), unique=True),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_savings_free_all_tensors_and_conserve_flops(
    modules: list[str], recasts: bool, narrow: bool, travels: bool
) -> None:
    """They change no FLOPs of the model, leave no more bytes, and I and W together are B."""
    experts = {"shared_ffn_hidden_size": 128}
    precision = fp8("blockwise", fp8_activation_inputs=narrow, fp8_dispatch=travels)
    precision["attention_output_bits"] = 12 if narrow and recasts else 16
    sections = {"grid": DEEPEP if travels else None, "experts": experts}
    plain = experts_in(fp8("blockwise", fp8_dispatch=travels), **sections)
    some = experts_in(
        precision,
        software=RECAST if recasts else "megatron_core",
        recompute={"modules": modules} if modules else "none",
        **sections,
    )
    forward, backward = layer(some, "F"), layer(some, "B")
    for ops, kind in ((forward, "F"), (backward, "B")):
        assert total_model_flops(ops) == total_model_flops(layer(plain, kind))
    assert kept_bytes(some) <= kept_bytes(plain)
    saved = {tensor for op in (*forward, *backward) for tensor in op.saves}
    assert saved >= {tensor for op in backward for tensor in op.reads}
    assert kept_bytes(some, "B") <= kept_bytes(plain, "B")
    halves = [repr(op.work) for kind in ("I", "W") for op in layer(some, kind)]
    assert sorted(halves) == sorted(repr(op.work) for op in backward)
