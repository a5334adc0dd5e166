"""Experts: parameters, places, sent bytes and laws of their layers, counted by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.durations.model import DurationModel
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import load_scenario
from simtrain.workload.blocks.router import RandomChoice, expected_places
from simtrain.workload.chunk import parameters
from simtrain.workload.ops import Op
from simtrain.workload.work import CollectiveKind, Elementwise, Gemm, GroupedGemm, KernelFamily
from tests.helpers.expert_models import EXPERTS, FFN, HIDDEN, TOKENS, TOP_K, layer, moe, sent
from tests.helpers.toys import a100, plan_of, scenario_with

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

A2A, AG, RS = (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def test_tokens_go_to_their_experts_and_come_back() -> None:
    """2 bytes · 64 tokens · 2 experts · 64 channels each way, and 2 bytes for each probability.
    Before, ranks gather 8-byte counts of tokens per expert.
    """
    rows = TOKENS * TOP_K
    dispatch, chances = (A2A, 2 * rows * HIDDEN, 4), (A2A, 2 * rows, 4)
    assert sent(moe()) == {dispatch: 2, chances: 1, (AG, 8 * EXPERTS * 4, 4): 1}
    assert sent(moe(), "B") == {dispatch: 2, chances: 1}


@pytest.mark.parametrize("each", [1, 2, 3])
def test_tokens_of_several_experts_are_sorted_in_both_directions(each: int) -> None:
    for kind in ("F", "B"):
        names = [op.name for op in layer(moe({"num": 4 * each}), kind)]
        sorts = [name for name in names if name.startswith(("sort by expert", "sort by rank"))]
        assert len({name.split()[2] for name in sorts}) == (2 if each > 1 else 0)


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


def products(ops: list[Op], *names: str) -> list[Any]:
    return [op.work for op in ops if op.name.startswith(names)]


def test_one_expert_has_the_same_products_as_a_dense_layer() -> None:
    one = moe({"num": 1, "top_k": 1}, {"expert": 1, "data": 8})
    dense = scenario_with(
        {**one.model.model_dump(exclude={"experts"}), "ffn_hidden_size": FFN},
        batch={"micro": 2, "global": 16},
        parallelism={"data": 8},
    )
    model = DurationModel(a100())
    for kind in ("F", "B"):
        grouped = products(layer(one, kind), "experts up", "experts down")
        plain = products(layer(dense, kind), "gate and up", "down")
        assert len(grouped) == len(plain) == (2 if kind == "F" else 4)
        for mine, other in zip(grouped, plain, strict=True):
            assert isinstance(other, Gemm)
            assert mine.product == other
            assert mine.flops == other.flops
            assert model.seconds(mine) == model.seconds(other)


def test_full_recompute_routes_and_exchanges_again() -> None:
    there = sent(moe(recompute="full"), "B")
    assert there == sent(moe(), "F") + sent(moe(), "B")
    memory = pass_memory(plan_of(moe(recompute="full")).layers_pass(1, "F"))
    assert memory.remaining_bytes == 2 * TOKENS * HIDDEN


def test_first_dense_layers_and_layer_frequency_place_experts() -> None:
    model = {"num_layers": 8, "ffn_hidden_size": 128}
    scenario = moe({"first_dense_layers": 3, "layer_frequency": 2}, model=model)
    plan = plan_of(scenario)
    blocks = [block for block in plan.model.blocks if block.is_unit]
    assert [block.experts is not None for block in blocks] == [  # type: ignore[attr-defined]
        *(False, False, False, False, True, False, True, False)
    ]
    own = parameters((plan.model,), plan.microbatch)
    assert own.experts == 2 * 2 * 3 * HIDDEN * FFN


# ---------------------------------------------------------------------------------------- rules


DEEPSEEK_V3 = RandomChoice(256, 8, 8, 4)


@pytest.mark.parametrize(
    ("choice", "places", "expected"),
    [
        # One of two experts: it is in one of the places.
        (RandomChoice(2, 1), 2, 1.0),
        # Two of four experts in two places: of 6 choices, 2 are in one place.
        (RandomChoice(4, 2), 2, 2 * (1 - 1 / 6)),
        # All experts are chosen.
        (RandomChoice(8, 8), 4, 4.0),
        # Two groups of two, one is chosen, and both of its experts: one of two places.
        (RandomChoice(4, 2, 2, 1), 2, 1.0),
        # The same groups over four places, one for each expert.
        (RandomChoice(4, 2, 2, 1), 4, 2.0),
        # Eight experts without groups on eight nodes of 32: a node is missed if all are elsewhere.
        (RandomChoice(256, 8), 8, 8 * (1 - math.comb(224, 8) / math.comb(256, 8))),
        # DeepSeek-V3: a group on each node, four of which are chosen, and 8 of their 128 experts.
        (DEEPSEEK_V3, 8, 4 * (1 - math.comb(96, 8) / math.comb(128, 8))),
        # Its ranks: 64 places of 4 experts, 32 of them in chosen groups.
        (DEEPSEEK_V3, 64, 32 * (1 - math.comb(124, 8) / math.comb(128, 8))),
        # Two groups on each of 4 nodes: none, one or both are chosen (15, 40 and 15 of 70).
        (
            DEEPSEEK_V3,
            4,
            4 * (1 - (15 + 40 * math.comb(96, 8) / math.comb(128, 8)) / 70
                 - 15 / 70 * math.comb(64, 8) / math.comb(128, 8)),
        ),
    ],
)  # fmt: skip
def test_places_by_hand(choice: RandomChoice, places: int, expected: float) -> None:
    assert expected_places(choice, places) == pytest.approx(expected, rel=1e-12)


@st.composite
def choices(draw: st.DrawFn) -> RandomChoice:
    groups = draw(st.sampled_from([1, 2, 4, 8]))
    size = draw(st.sampled_from([2, 4, 8]))
    chosen = draw(st.integers(1, groups))
    top_k = draw(st.integers(1, chosen * size))
    return RandomChoice(groups * size, top_k, groups, chosen)


@given(choices(), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_token_reaches_between_one_place_and_all_that_it_can(
    choice: RandomChoice, places: int
) -> None:
    expected = expected_places(choice, places)
    assert 1 - 1e-9 <= expected <= min(choice.top_k, places) + 1e-9
    if places >= choice.groups:
        # No more than the places of the chosen groups.
        assert expected <= choice.chosen * places / choice.groups + 1e-9
    # Limited groups can only bring experts closer together.
    free = RandomChoice(choice.num, choice.top_k)
    assert expected <= expected_places(free, places) + 1e-9
