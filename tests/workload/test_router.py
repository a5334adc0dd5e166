"""Routers of experts: kernels, bytes and saved tensors, counted by hand."""

from typing import Any

import pytest

from simtrain.workload.ops import Op
from simtrain.workload.work import Elementwise, Gemm
from tests.helpers.expert_models import EXPERTS, HIDDEN, TOKENS, TOP_K, layer, moe

SIGMOID = {"router_score": "sigmoid"}
BIAS = SIGMOID | {"router_bias": True}
GROUPS = {"router_groups": 2, "router_group_top_k": 1}
WHOLE, PICKED, CHOSEN = 4 * TOKENS * EXPERTS, TOKENS * TOP_K * (4 + 8), 4 * TOKENS * TOP_K
LOGITS = 2 * TOKENS * EXPERTS


def added(size: dict[str, Any], kind: Any = "F", base: dict[str, Any] | None = None) -> list[Op]:
    """Return the ops of a router that a second router, by default with softmax, does not have."""
    before = {(op.name, op.work) for op in layer(moe(base or {}), kind)}
    return [op for op in layer(moe(size), kind) if (op.name, op.work) not in before]


def traffic(ops: list[Op]) -> dict[str, tuple[int, int]]:
    found = {}
    for op in ops:
        assert isinstance(op.work, Elementwise)
        found[op.name] = op.work.read_bytes, op.work.write_bytes
    return found


def test_sigmoids_are_computed_for_every_expert_in_fp32() -> None:
    """Megatron-Core's `topk_routing_with_score_function`: cast, sigmoid, top-k,
    divide by the sum.
    """
    assert traffic(added(SIGMOID)) == {
        "router logits cast": (LOGITS, WHOLE),
        "router sigmoid": (WHOLE, WHOLE),
        "router top-k": (WHOLE, PICKED),
        "router normalization": (CHOSEN, CHOSEN),
    }
    assert traffic(added(SIGMOID, "B")) == {
        "router normalization gradient": (LOGITS + PICKED, WHOLE),
        "router sigmoid gradient": (2 * WHOLE, WHOLE),
        "router logits gradient cast": (WHOLE, LOGITS),
    }
    fp32 = {"router_dtype": "fp32"}
    assert not any("cast" in name for name in traffic(added(SIGMOID | fp32, base=fp32)))


@pytest.mark.parametrize("score", [{}, SIGMOID])
def test_an_fp32_router_casts_only_16_bit_numbers(score: dict[str, Any]) -> None:
    """`RouterGatingLinearFunction` calls `to` on operands and gradients, a no-op for fp32 ones."""
    scenario = moe(score | {"router_dtype": "fp32"})
    tokens, weights = TOKENS * HIDDEN, HIDDEN * EXPERTS
    ops = layer(scenario, "B")
    assert traffic([op for op in ops if "cast" in op.name]) == {
        "router weight cast": (2 * weights, 4 * weights),
        "router input gradient cast": (4 * tokens, 2 * tokens),
        "router cast": (2 * tokens, 4 * tokens),
        "router weight gradient cast": (4 * weights, 2 * weights),
    }
    works = {op.name: op.work for op in ops}
    for name in ("router input gradient", "router weight gradient"):
        work = works[name]
        assert isinstance(work, Gemm)
        assert work.moved_bytes == 4 * (tokens + TOKENS * EXPERTS + weights)
    fp32 = scenario.replace({"precision.compute": "fp32"})
    assert not [op for kind in "FB" for op in layer(fp32, kind) if "cast" in op.name]


@pytest.mark.parametrize(
    ("router", "precision", "forward", "backward"),
    [
        ("bf16", {}, ("bf16", 2), ("bf16", 2)),
        ("bf16", {"compute": "fp8"}, ("bf16", 2), ("bf16", 2)),
        ("fp32", {}, ("bf16", 2), ("tf32", 4)),
        ("fp32", {"compute": "fp16"}, ("bf16", 2), ("tf32", 4)),
        ("fp32", {"compute": "fp32"}, ("fp32", 4), ("fp32", 4)),
        ("fp32", {"compute": "fp32", "tf32": True}, ("tf32", 4), ("tf32", 4)),
    ],
)
def test_products_have_the_type_of_their_operands(
    router: str, precision: dict[str, Any], forward: tuple[str, int], backward: tuple[str, int]
) -> None:
    """`RouterGatingLinearFunction`: `te_general_gemm` of bf16 forward, of fp32 backward."""
    software = "megatron_core" if precision.get("compute") == "fp8" else "megatron_2022"
    grid, size = {"tensor": 1}, {"router_dtype": router}
    scenario = moe(size, grid, precision=precision, software=software, attention_backend="unfused")
    works = {op.name: op.work for kind in "FB" for op in layer(scenario, kind)}
    types = []
    for name in ("router", "router input gradient", "router weight gradient"):
        work = works[name]
        assert isinstance(work, Gemm)
        types.append((work.dtype, work.element_bytes))
    assert types == [forward, backward, backward]


@pytest.mark.parametrize("fuses", [True, False])
def test_a_kernel_adds_the_weight_gradient_of_a_router(fuses: bool) -> None:
    """`RouterGatingLinearFunction` returns it, and DDP's hook adds it: `main_grad.add_`."""
    software = {"stack": "megatron_2022", "fused_gradient_accumulation": fuses}
    weights = HIDDEN * EXPERTS
    ops = [op for op in layer(moe(software=software), "B") if "router weight" in op.name]
    assert isinstance(ops[0].work, Gemm)
    assert ops[0].work.moved_bytes == 2 * (TOKENS * EXPERTS + TOKENS * HIDDEN + weights)
    assert traffic(ops[1:]) == {"router weight gradient sum": (6 * weights, 4 * weights)}
    sharded = moe(
        software={"stack": "megatron_2022", "fully_shard": True}, memory={"zero_stage": 3}
    )
    assert not any("router weight gradient sum" in op.name for op in layer(sharded, "B"))


def test_a_bias_chooses_the_experts_and_not_their_weights() -> None:
    """It is added to all scores. The scores of the chosen experts are then read without it."""
    assert traffic(added(BIAS, base=SIGMOID)) == {
        "router bias": (WHOLE, WHOLE),
        "router scores": (PICKED, CHOSEN),
        "tokens per expert": (TOKENS * EXPERTS, 4 * EXPERTS),
    }
    assert not added(BIAS, "B", base=SIGMOID)


@pytest.mark.parametrize(("score", "size"), [({}, 2), (SIGMOID, 4)])
def test_experts_outside_the_best_groups_are_masked(score: dict[str, Any], size: int) -> None:
    """The router sums top_k scores of each of 2 groups, picks 1 group, and masks other experts."""
    all_scores, best = size * TOKENS * EXPERTS, 2 * TOKENS * TOP_K
    group = TOKENS * (size + 8)
    assert traffic(added(score | GROUPS, base=score)) == {
        "best of each group": (all_scores, best * (size + 8)),
        "group scores": (best * size, 2 * TOKENS * size),
        "group top-k": (2 * TOKENS * size, group),
        "group mask": (group, all_scores),
        "masked scores": (2 * all_scores, all_scores),
    }
    assert not added(score | GROUPS, "B", base=score)
