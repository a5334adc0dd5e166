"""Mixture-of-experts layers: parameters, FLOPs, sent and saved bytes, counted by hand."""

import itertools
from fractions import Fraction
from typing import Any

import pytest

from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import load_scenario
from simtrain.workload.ops import total_flops, total_model_flops
from simtrain.workload.work import CollectiveKind, Elementwise, Gemm, GroupedGemm, KernelFamily
from tests.helpers.expert_models import (
    EXPERTS,
    FFN,
    HEADS,
    HIDDEN,
    SEQ,
    TOKENS,
    TOP_K,
    layer,
    moe,
    sent,
)
from tests.helpers.toys import plan_of

PUBLISHED = {
    # 2 V h + h + L (2 h² + 2 h · 1,024 + 8 · 3 h f + 8 h + 2 h): V = 32,000, h = 4,096, L = 32,
    # f = 14,336
    "mixtral_8x7b": (46_702_792_704, 12_879_925_248),
    # as before: V = 32,768, h = 6,144, L = 56, f = 16,384
    "mixtral_8x22b": (140_630_071_296, 39_161_468_928),
    # 2 V h + h + L (2 h q + 2 h · 512 + 128 · 3 h f + 128 h + 2 h + 256): V = 151,936, h = 2,048,
    # q = 4,096, L = 48, f = 768
    "qwen3_30b_a3b": (30_532_122_624, 3_353_032_704),
    # as before: h = 4,096, q = 8,192, L = 94, f = 1,536
    "qwen3_235b_a22b": (235_093_634_560, 22_190_763_520),
    # With the module of multi-token prediction; counted below.
    "deepseek_v3": (682_636_472_320, 38_240_382_976),
}
"""Parameters, and active parameters, which include only top_k experts per layer."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_model_has_its_published_number_of_parameters(name: str) -> None:
    plan = plan_of(load_scenario(name))
    assert (plan.num_parameters, plan.num_active_parameters) == PUBLISHED[name]


def test_parameters_of_deepseek_v3_by_hand() -> None:
    """The technical report counts 671B (37B active per token), and the module of multi-token
    prediction.

    The checkpoint's 671,026,419,200 parameters include router biases of 256 experts in each of 58
    layers, which have no gradient. Its 14B for the module include copies of the embedding and the
    head, which training shares with the model.
    """
    hidden, heads = 7168, 128
    attention = hidden * 1536 + 1536 + 1536 * heads * (128 + 64)
    attention += hidden * (512 + 64) + 512 + 512 * heads * (128 + 128) + heads * 128 * hidden
    expert = 3 * hidden * 2048
    sparse = attention + 2 * hidden + (256 + 1) * expert + 256 * hidden
    dense = attention + 2 * hidden + 3 * hidden * 18432
    main = 2 * 129280 * hidden + hidden + 3 * dense + 58 * sparse
    assert main == 671_026_419_200 - 58 * 256
    # The module has two norms, a projection that joins hidden state and embedding, a layer, and a
    # final norm.
    module = 2 * hidden + 2 * hidden * hidden + sparse + hidden
    scenario = load_scenario("deepseek_v3")
    whole, alone = (
        plan_of(scenario.replace({"model.mtp_num_layers": modules})) for modules in (1, 0)
    )
    assert (alone.num_parameters, whole.num_parameters) == (main, main + module)
    assert whole.num_parameters == PUBLISHED["deepseek_v3"][0]
    assert alone.num_active_parameters == main - 58 * 248 * expert == 37_552_282_624


# ------------------------------------------------------------------------------- layers by hand

A2A, AG, RS = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)


def test_tokens_go_to_their_experts_and_come_back() -> None:
    """2 bytes · 64 tokens · 2 experts · 64 channels each way, and 2 bytes for each probability.
    Before, ranks gather 8-byte counts of tokens per expert.
    """
    rows = TOKENS * TOP_K
    dispatch, chances = (A2A, 2 * rows * HIDDEN, 4), (A2A, 2 * rows, 4)
    assert sent(moe()) == {dispatch: 2, chances: 1, (AG, 8 * EXPERTS * 4, 4): 1}
    assert sent(moe(), "B") == {dispatch: 2, chances: 1}


def test_ranks_that_share_an_expert_gather_their_tokens() -> None:
    """Each of two tensor-parallel ranks routes half of the tokens. Both have half of each expert,
    unless `expert_tensor` is 1.
    """
    grid = {"tensor": 2, "data": 4, "expert": 4}
    rows = TOKENS // 2 * TOP_K
    found = sent(moe(grid=grid))
    assert found[A2A, 2 * rows * HIDDEN, 4] == 2
    assert found[AG, 2 * 2 * rows * HIDDEN, 2] == found[RS, 2 * 2 * rows * HIDDEN, 2] == 1
    alone = sent(moe(grid=grid | {"expert_tensor": 1}))
    assert alone[A2A, 2 * rows * HIDDEN, 4] == 2
    assert (AG, 2 * 2 * rows * HIDDEN, 2) not in alone


def test_dispatch_by_all_gather_gathers_all_tokens() -> None:
    found = sent(moe(grid={"expert_dispatch": "all_gather"}))
    whole = 2 * 4 * TOKENS
    assert found == {
        (AG, whole * HIDDEN, 4): 1,
        (AG, whole * EXPERTS, 4): 1,
        (RS, whole * HIDDEN, 4): 1,
    }


GRIDS: list[dict[str, Any]] = [
    {},
    {"expert": 1},
    {"tensor": 2, "data": 4},
    {"tensor": 2, "data": 4, "expert_tensor": 1},
    {"tensor": 2, "data": 4, "expert": 2, "expert_dispatch": "all_gather"},
]
SIZES: list[dict[str, Any]] = [
    {},
    {"capacity_factor": 1.25},
    {"capacity_factor": 0.5},
    {"router_dtype": "fp32"},
    {"shared_ffn_hidden_size": 48},
]
LAYERS = [
    (grid, size)
    for grid, size in itertools.product(GRIDS, SIZES)
    if "capacity_factor" not in size or "expert_dispatch" not in grid
]


@pytest.mark.parametrize(("grid", "size"), LAYERS)
def test_flops_by_hand(grid: dict[str, Any], size: dict[str, Any]) -> None:
    """2 FLOPs per weight and token that uses it; 2 · 2 s² h per sequence for products with scores.

    The counts are sums over tensor-parallel ranks, because each routes its own tokens.
    """
    scenario = moe(size, grid)
    t = scenario.parallelism.tensor
    local = TOKENS // t
    capacity = size.get("capacity_factor")
    padded = local * TOP_K
    if capacity:
        padded = EXPERTS * -(-local * TOP_K * int(100 * capacity) // (100 * EXPERTS))
    dense = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * size.get("shared_ffn_hidden_size", 0)
    attention = 2 * 2 * 2 * SEQ * SEQ * HIDDEN
    routed = EXPERTS * HIDDEN
    expected = 2 * TOKENS * (dense + routed) + attention
    forward = layer(scenario)
    assert t * total_flops(forward) == expected + 2 * t * padded * 3 * HIDDEN * FFN
    useful = min(padded, local * TOP_K)
    assert t * total_model_flops(forward) == expected + 2 * t * useful * 3 * HIDDEN * FFN
    assert total_flops(layer(scenario, "B")) == 2 * total_flops(forward)


@pytest.mark.parametrize(("grid", "size"), LAYERS)
def test_parameters_of_a_rank_by_hand(grid: dict[str, Any], size: dict[str, Any]) -> None:
    scenario = moe(size, grid)
    split, plan = scenario.parallelism, plan_of(scenario)
    (stage,) = plan.stage_parameters
    own = Fraction(EXPERTS * 3 * HIDDEN * FFN, split.expert * split.ranks_of_expert)
    shared = 3 * HIDDEN * size.get("shared_ffn_hidden_size", 0)
    dense = Fraction(4 * HIDDEN * HIDDEN + shared, split.tensor) + EXPERTS * HIDDEN + 4 * HIDDEN
    assert stage.experts == own
    assert stage.layers == own + dense
    replicas = 8 // (split.expert * split.ranks_of_expert)
    group = plan.step_options.expert_data
    assert group is not None
    assert group.num_ranks == replicas
    assert plan.step_options.data.num_ranks == split.data


@pytest.mark.parametrize(("grid", "size"), LAYERS)
def test_saved_bytes_by_hand(grid: dict[str, Any], size: dict[str, Any]) -> None:
    """Saved: inputs and outputs of norms; Q, K, V, context and scores of attention; inputs of
    products and activations; probabilities, choices and the order of tokens of the router.
    """
    scenario = moe(size, grid)
    split = scenario.parallelism
    t, local = split.tensor, TOKENS // split.tensor
    router = 4 if size.get("router_dtype") == "fp32" else 2
    norms = 4 * 2 * local * HIDDEN
    core = 2 * 4 * TOKENS * HIDDEN // t + 2 * HEADS // t * TOKENS * SEQ
    scores = local * EXPERTS * (router + 4 + 1) + local * TOP_K * (4 + 8)
    sent_rows = local * TOP_K
    if capacity := size.get("capacity_factor"):
        sent_rows = EXPERTS * -(-local * TOP_K * int(100 * capacity) // (100 * EXPERTS))
    rows = sent_rows * split.ranks_of_expert
    experts = rows * (2 * HIDDEN + 2 * 3 * FFN // split.ranks_of_expert + router)
    order = 8 * (rows if split.expert_dispatch == "all_gather" else sent_rows)
    shared = 2 * 3 * TOKENS * size.get("shared_ffn_hidden_size", 0) // t
    (scatter,) = (op for op in layer(scenario) if op.name == "router scatter")
    assert isinstance(scatter.work, Elementwise)
    assert scatter.work.write_bytes == local * EXPERTS * (router + 1)
    memory = pass_memory(plan_of(scenario).layers_pass(1, "F"))
    assert memory.remaining_bytes == norms + core + scores + experts + order + shared


@pytest.mark.parametrize(
    ("software", "memory", "accumulates", "sums"),
    [
        ({}, {}, True, False),
        ({"fused_gradient_accumulation": False}, {}, False, True),
        ({"fully_shard": True}, {"zero_stage": 3}, False, False),
    ],
)
def test_experts_sum_weight_gradients_as_other_linear_layers(
    software: dict[str, Any], memory: dict[str, Any], accumulates: bool, sums: bool
) -> None:
    """`gradient_accumulation_fusion` of Megatron-LM's `TELinear` and of its `TEGroupedLinear`.

    A rank has 2 experts with half of 64 · 2 rows each. The product of one reads its rows in 16 bits
    and reads and writes an fp32 gradient, or writes 16 bits, which a kernel adds.
    """
    scenario = moe(software={"stack": "megatron_2022"} | software, memory=memory)
    ops = {op.name: op.work for op in layer(scenario, "B")}
    works = [ops[f"{name} weight gradient"] for name in ("experts down", "projection")]
    assert isinstance(works[0], GroupedGemm)
    assert isinstance(works[1], Gemm)
    written = 4 if accumulates else 2
    assert {(one.accumulate, one.output_element_bytes) for one in works} == {(accumulates, written)}
    result = (2 * 4 if accumulates else 2) * HIDDEN * FFN
    assert works[0].product.moved_bytes == 2 * 64 * (HIDDEN + FFN) + result
    added = {
        name: ops.get(f"{name} weight gradient sum") for name in ("experts down", "projection")
    }
    sizes = {"experts down": 2 * HIDDEN * FFN, "projection": HIDDEN * HIDDEN}
    expected = {
        name: Elementwise(6 * size, 4 * size, KernelFamily.STREAM, is_backward=True)
        for name, size in sizes.items()
    }
    assert added == (expected if sums else dict.fromkeys(sizes))
