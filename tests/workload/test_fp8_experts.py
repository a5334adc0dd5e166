"""Experts and latent attention in fp8: products, casts, padding and saved bytes by hand."""

from typing import Any

import pytest

from simtrain.scenario import Scenario
from simtrain.workload.ops import total_flops, total_model_flops
from simtrain.workload.optimizer import StepOps
from simtrain.workload.work import Collective, Gemm, GroupedGemm
from tests.helpers.expert_models import layer, moe
from tests.helpers.lifetimes import moved
from tests.helpers.toys import plan_of

H, F, HEADS, TOKENS, EXPERTS, TOP_K, RANKS = 256, 384, 4, 128, 8, 2, 4
ROWS, OWN = TOKENS * TOP_K, EXPERTS // RANKS
PADDING = {"delayed": OWN * 15 // 2, "blockwise": OWN * 15 // 2, "mxfp8": OWN * 31 // 2}
RECIPES = ("delayed", "tensorwise", "blockwise")
ATTENTION = H * 3 * H + H * H
EXPERT = 3 * H * F


def experts_in(precision: dict[str, Any], *, model: Any = None, **more: Any) -> Scenario:
    """Return a layer with 8 experts on 4 ranks. Each rank routes 128 tokens to two experts each."""
    sizes = {"hidden_size": H, "num_attention_heads": HEADS, "seq_length": TOKENS // 2}
    sizes |= {"normalization": "rms_norm"}
    sections = {"attention_backend": "fused", "cluster": "h100_sxm", "precision": precision}
    experts = {"ffn_hidden_size": F} | more.pop("experts", {})
    return moe(experts, more.pop("grid", None), model=sizes | (model or {}), **sections | more)


def fp8(recipe: str = "delayed", **more: Any) -> dict[str, Any]:
    return {"compute": "fp8", "fp8_recipe": recipe} | more


def saves(scenario: Scenario) -> dict[str, int]:
    """Return the bytes of the tensors that a layer saves, by name."""
    tensors = {tensor for op in layer(scenario) for tensor in op.saves}
    return {tensor.name: tensor.num_bytes for tensor in tensors}


def products(scenario: Scenario, kind: str) -> dict[str, Gemm | GroupedGemm]:
    works = ((op.name, op.work) for op in layer(scenario, kind))
    return {name: one for name, one in works if isinstance(one, Gemm | GroupedGemm)}


# ------------------------------------------------------------------------------------- experts


@pytest.mark.parametrize("recipe", ["delayed", "blockwise", "mxfp8"])
def test_rows_of_experts_are_padded_to_the_multiple_of_the_recipe(recipe: str) -> None:
    """Rows are padded to multiples of 16 or 32. Every remainder is equally likely, so the mean
    padding is 7.5 or 15.5 rows per expert.
    """
    scenario = experts_in(fp8(recipe))
    rows = ROWS + PADDING[recipe]
    up = products(scenario, "F")["experts up"]
    assert isinstance(up, GroupedGemm)
    assert (up.batch, up.rows, up.mean_rows, up.model_rows) == (OWN, rows, rows, ROWS)
    padding = moved(layer(scenario))["experts padding"]
    assert padding == (2 * ROWS * H, 2 * rows * H)
    back = moved(layer(scenario, "B"))
    assert back["experts padding gradient"] == (2 * ROWS * H, 2 * ROWS * H)
    assert moved(layer(scenario))["experts padding dropped"] == (2 * ROWS * H,) * 2
    assert back["experts padding dropped gradient"] == (2 * ROWS * H, 2 * rows * H)


def test_a_capacity_fixes_the_padding() -> None:
    """With a factor of 1.1, ceil(1.1 · 128 · 2 / 8) = 36 rows come from each of 4 ranks, and 144
    rows need no padding. With 1.07, 35 rows come from each, and 140 rows need 4 more.
    """
    for factor, padding in ((1.1, 0), (1.07, 4)):
        scenario = experts_in(fp8(), experts={"capacity_factor": factor})
        up = products(scenario, "F")["experts up"]
        assert isinstance(up, GroupedGemm)
        assert up.rows == OWN * (144 if padding == 0 else 140 + padding)
        assert any("padding" in name for name in moved(layer(scenario))) == (padding > 0)


def test_experts_in_fp8_add_only_flops_of_padding() -> None:
    for kind, times in (("F", 1), ("B", 2)):
        bf16, ours = (layer(experts_in(one), kind) for one in ({}, fp8()))
        assert total_model_flops(ours) == total_model_flops(bf16) > 0
        assert total_flops(ours) - total_flops(bf16) == times * 2 * PADDING["delayed"] * EXPERT


def test_products_of_experts_are_in_fp8_and_their_router_is_not() -> None:
    scenario = experts_in(fp8("blockwise"), experts={"shared_ffn_hidden_size": 128})
    found = products(scenario, "F") | products(scenario, "B")
    router = {name for name in found if name.startswith("router")}
    assert {found[name].dtype for name in router} == {"bf16"}
    names = ("QKV", "projection", "experts up", "experts down", "shared expert up")
    for name in names:
        forward, weight = found[name], found[f"{name} weight gradient"]
        assert (forward.dtype, forward.element_bytes) == ("fp8_block", 1)
        assert (forward.output_element_bytes, weight.output_element_bytes) == (2, 4)
    assert {one.dtype for name, one in found.items() if name not in router} == {"fp8_block"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_casts_of_experts_write_both_copies_of_each_input_and_gradient(recipe: str) -> None:
    there, back = (moved(layer(experts_in(fp8(recipe)), kind)) for kind in ("F", "B"))
    rows = ROWS + OWN * 15 // 2
    found = {
        ("experts up input", H, "F"),
        ("experts down input", F, "F"),
        ("experts up gradient", 2 * F, "B"),
        ("experts down gradient", H, "B"),
    }
    for name, width, kind in found:
        elements = rows * width
        scales = elements // 128 * 4 if recipe == "blockwise" else 0
        ours = there if kind == "F" else back
        assert ours[f"{name} to fp8"] == (2 * elements, 2 * (elements + scales))
        assert (f"{name} largest" in ours) == (recipe == "tensorwise")
    assert not any("transpose" in name and "expert" in name for name in (*there, *back))


@pytest.mark.parametrize(("recipe", "scales"), [("delayed", 0), ("blockwise", 4 / 128)])
def test_experts_save_their_inputs_in_one_byte(recipe: str, scales: float) -> None:
    """Padding is saved too. The activation saves its input in bf16."""
    found, rows = saves(experts_in(fp8(recipe))), ROWS + OWN * 15 // 2
    for name, width in (("up", H), ("down", F)):
        saved = f"experts {name} input in fp8"
        assert found[saved] + found.get(f"{saved} scales", 0) == (1 + scales) * rows * width
    assert found["experts up output"] == 2 * rows * 2 * F
    plain = saves(experts_in({}))
    assert plain["dispatch output sorted"] == 2 * ROWS * H
    assert plain["experts SwiGLU output"] == 2 * ROWS * F
    assert not {"dispatch output sorted", "experts SwiGLU output"} & found.keys()


def test_weights_of_experts_are_cast_once_and_gathered_over_their_replicas() -> None:
    """4 of 8 ranks have different experts, so an expert has 2 replicas. Other weights have 8."""
    for keeps in (False, True):
        scenario = experts_in(fp8(fp8_parameters=keeps), memory={"zero_stage": 1})
        step = step_of(scenario)
        weights = ATTENTION + OWN * EXPERT
        casts = moved([*step["weight_cast"]])
        if keeps:
            assert casts == {"weights transpose": (weights, weights)}
        else:
            assert casts == {"weights to fp8": (2 * weights, 2 * weights)}
        gathered = [op.work for op in step["parameter_gather"]]
        sizes = [one.array_bytes for one in gathered if isinstance(one, Collective)]
        rest = plan_of(scenario).num_parameters - EXPERTS * EXPERT - ATTENTION
        size = 1 if keeps else 2
        assert sizes == [2 * rest + size * ATTENTION, size * OWN * EXPERT]
        if keeps:
            shard = ATTENTION // 8 + OWN * EXPERT // 2
            assert moved([*step["update"]])["weights to fp8"] == (2 * shard, shard)


def step_of(scenario: Scenario) -> StepOps:
    (step,) = plan_of(scenario).steps
    return step


# ---------------------------------------------------------------------------- latent attention

LATENT = {"q_lora_rank": 128, "kv_lora_rank": 256, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32}
LATENT |= {"v_head_dim": 48}


def latent(recipe: str, tensor: int = 2, **more: Any) -> Scenario:
    model = {"latent_attention": LATENT, "qk_norm": True, "experts": None, "seq_length": TOKENS}
    grid = {"tensor": tensor, "expert": 1, "data": 2}
    return experts_in(fp8(recipe), model=model | more, grid=grid)
