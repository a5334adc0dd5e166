"""Selective recompute of modules: freed tensors and recomputed ops, counted by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import RecomputePolicy, Scenario, check_scenario
from simtrain.scenario.memory_rules import absent_modules
from simtrain.scenario.section import MODULES
from simtrain.workload.ops import Op, Phase, total_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective
from tests.helpers.expert_models import EXPERTS, FFN, HEADS, HIDDEN, SEQ, TOKENS, TOP_K, moe
from tests.helpers.layers import layers
from tests.helpers.toys import plan_of, scenario_with

S, B, H, A, T = 24, 2, 32, 4, 2
GPT = {"num_layers": 1, "hidden_size": H, "num_attention_heads": A, "seq_length": S}
GRID = {"tensor": T, "sequence_parallel": True}
BATCH = {"micro": B, "global": B}
SBH = S * B * H // T
"""Elements of one rank's shard of the hidden states."""


def gpt(**sections: Any) -> Scenario:
    return scenario_with(GPT, parallelism=GRID, batch=BATCH, **sections)


def with_modules(scenario: Scenario, *modules: str) -> Scenario:
    return scenario.replace({"recompute": {"modules": list(modules)} if modules else "none"})


def kept_bytes(scenario: Scenario) -> int:
    return pass_memory(plan_of(scenario).layers_pass(1, "F")).remaining_bytes


def ops_of(scenario: Scenario, kind: Any) -> list[Op]:
    return [*record_pass(plan_of(scenario).layers_pass(1, kind)).ops]


def again(scenario: Scenario, kind: Any = "B") -> list[str]:
    """Return the names of the ops that a backward pass runs again."""
    return [op.name for op in ops_of(scenario, kind) if op.phase is Phase.RECOMPUTE]


def dropped_bytes(scenario: Scenario, *modules: str) -> int:
    """Return the saved bytes that recompute avoids. A backward pass must not leave more bytes than
    without it.
    """
    some, none = with_modules(scenario, *modules), with_modules(scenario)
    check_scenario(some)
    assert remaining_bytes(some) <= remaining_bytes(none)
    return kept_bytes(none) - kept_bytes(some)


def remaining_bytes(scenario: Scenario, kind: Any = "B") -> int:
    """Return the bytes that a backward pass leaves: of experts, tensors that no gradient reads."""
    return pass_memory(plan_of(scenario).layers_pass(1, kind)).remaining_bytes


ATTENTION_NORM, MLP_NORM = "attention layer norm", "MLP layer norm"
MLP = ["MLP g", "h→4h", "bias and GeLU", "4h→h", "MLP ḡ"]
CORE = ["QKᵀ", "softmax", "softmax dropout", "attention over V", "merge heads"]


@pytest.mark.parametrize(
    ("modules", "dropped", "ops"),
    [
        (["core_attention"], 5 * A * S * S * B // T, CORE),
        # Dropped: the inputs of QKV and of the MLP's first product. The last norm runs again first.
        (["layernorm"], 2 * 2 * SBH, [MLP_NORM, ATTENTION_NORM]),
        # Dropped: the inputs of GeLU and of the second product. The MLP's input stays.
        (["mlp"], 2 * 8 * SBH, MLP),
        (["layernorm", "mlp"], (4 + 16) * SBH, [MLP_NORM, *MLP, ATTENTION_NORM]),
        (
            ["mlp", "layernorm", "core_attention"],
            20 * SBH + 5 * A * S * S * B // T,
            [MLP_NORM, *MLP, ATTENTION_NORM, *CORE],
        ),
    ],
)
def test_a_gpt_layer_by_hand(modules: list[str], dropped: int, ops: list[str]) -> None:
    assert dropped_bytes(gpt(), *modules) == dropped
    assert again(with_modules(gpt(), *modules)) == ops


def test_a_norm_in_a_linear_layer_is_recomputed_with_the_mlp() -> None:
    """Linear layers of Transformer Engine include the norm, so the MLP's checkpoint saves the input
    of the norm.
    """
    fused = gpt(software="megatron_core")
    assert dropped_bytes(fused, "mlp") == (2 + 16) * SBH
    assert again(with_modules(fused, "mlp")) == [MLP_NORM, *MLP]


def test_a_norm_is_recomputed_when_the_gradient_of_its_branch_is_complete() -> None:
    """The norm runs again before the projection's backward pass, not just before QKV's. In between,
    its output is in memory. The gradient of its branch, which nothing saves, waits for it.
    """
    record = record_pass(plan_of(with_modules(gpt(), "layernorm")).layers_pass(1, "B"))
    waiting = [size for part in record.segments for size in part.waiting_bytes if size]
    assert waiting == [2 * SBH, 2 * SBH]
    names = [op.name for op in record.ops]
    for norm, before in ((ATTENTION_NORM, "attention ḡ"), (MLP_NORM, "MLP ḡ")):
        assert names.index(norm) == names.index(before) - 1
    memory = pass_memory(plan_of(with_modules(gpt(), "layernorm")).layers_pass(1, "B"))
    assert memory.recomputed_bytes == 2 * SBH


LAYERS = [
    ({"tensor": 1, "expert": 4}, {}),
    ({"tensor": 4, "expert": 8, "expert_tensor": 1}, {"shared_ffn_hidden_size": 64}),
    ({"tensor": 2, "expert": 2}, {"shared_ffn_hidden_size": 64, "shared_gate": True}),
    ({"tensor": 2, "expert": 4, "expert_dispatch": "all_gather"}, {}),
]


@pytest.mark.parametrize(("grid", "size"), LAYERS)
def test_a_layer_with_experts_by_hand(grid: dict[str, Any], size: dict[str, Any]) -> None:
    one = moe(size, grid)
    split = one.parallelism
    t, local = split.tensor, TOKENS // split.tensor
    shared_ffn = size.get("shared_ffn_hidden_size", 0)
    rows = local * TOP_K * split.ranks_of_expert
    ffn = FFN // split.ranks_of_expert
    orders = rows if split.expert_dispatch == "all_gather" else local * TOP_K
    scores = local * EXPERTS * (2 + 4 + 1) + local * TOP_K * (4 + 8)
    inside = rows * (2 * HIDDEN + 2 * 3 * ffn + 2) + 8 * orders + scores
    gated = 2 * local * HIDDEN + 2 * local if size.get("shared_gate") else 0
    shared = 2 * 3 * TOKENS * shared_ffn // t + gated
    assert dropped_bytes(one, "moe_act") == 2 * rows * ffn
    # The input of the experts stays.
    assert dropped_bytes(one, "moe") == inside + shared
    assert dropped_bytes(one, "layernorm", "moe") == inside + shared + 2 * 2 * local * HIDDEN
    core = 2 * HEADS // t * TOKENS * SEQ
    assert dropped_bytes(one, "core_attention", "moe") == inside + shared + core
    if shared_ffn:
        assert dropped_bytes(one, "shared_experts") == shared


def collectives(ops: Sequence[Op]) -> list[Collective]:
    return [op.work for op in ops if isinstance(op.work, Collective)]


def test_recompute_of_experts_dispatches_tokens_again() -> None:
    one = with_modules(moe({"shared_ffn_hidden_size": 64}), "moe")
    forward, backward = ops_of(one, "F"), ops_of(one, "B")
    first = next(i for i, op in enumerate(forward) if op.name == "router")
    repeated = [op for op in backward if op.phase is Phase.RECOMPUTE]
    # All ops from the router on, except the sum with the residual.
    assert [op.work for op in repeated] == [op.work for op in forward[first:-1]]
    assert len(collectives(repeated)) == 4


LATENT = {"kv_lora_rank": 16, "qk_head_dim": 12, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}
UP = ["query up", "key and value up", "query rotation", "key rotation"]


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("rank", [None, 12])
@pytest.mark.parametrize("has_norm", [False, True])
def test_latent_attention_by_hand(sequence: bool, rank: int | None, has_norm: bool) -> None:
    """Queries, keys, values and normalized latents are dropped. The position part of keys is an
    input of the module, so it is saved.
    """
    model = GPT | {
        "latent_attention": LATENT | ({"q_lora_rank": rank} if rank else {}),
        "qk_norm": has_norm,
        "position_embedding": "rope",
        "biases": False,
    }
    grid = {"tensor": T, "sequence_parallel": sequence}
    one = scenario_with(model, parallelism=grid, batch=BATCH, attention_backend="fused")
    tokens, heads = S * B, A // T
    local = tokens // (T if sequence else 1)
    queries_keys_values = 2 * tokens * heads * (2 * (12 + 4) + 8)
    latents = 2 * local * (16 + (rank or 0)) if has_norm else 0
    position = 2 * tokens * 4
    assert dropped_bytes(one, "mla_up_proj") == queries_keys_values + latents - position
    names = again(with_modules(one, "mla_up_proj"))
    assert [name for name in names if name in UP] == UP
    assert names.count("key position gather") == 0
    assert len([name for name in names if name.endswith("g")]) == (2 if sequence else 0)
    backward = [op.name for op in ops_of(with_modules(one, "mla_up_proj", "core_attention"), "B")]
    core = backward.index("fused attention")
    assert backward.index("projection weight gradient") < backward.index("query up") < core
    # The norm's output is dropped too. Down projections read it, and query up if there is no
    # q_lora_rank.
    both = dropped_bytes(one, "mla_up_proj", "layernorm")
    norms = 2 * 2 * local * H
    assert both == queries_keys_values + latents - position + norms


def subsets(scenario: Scenario) -> st.SearchStrategy[list[str]]:
    absent = absent_modules(scenario)
    return st.lists(st.sampled_from([m for m in MODULES if m not in absent]), unique=True)


@given(layers(), st.data())
@settings(max_examples=25, deadline=None)
def test_modules_free_all_tensors_and_conserve_flops(
    scenario: Scenario, data: st.DataObject
) -> None:
    """Recompute adds FLOPs and changes no others, leaves no more bytes, and is the same in I and W
    as in B.
    """
    modules = data.draw(subsets(scenario))
    some, none = (with_modules(scenario, *names) for names in (modules, []))
    backward, plain = ops_of(some, "B"), ops_of(none, "B")
    repeated = [op for op in backward if op.phase is Phase.RECOMPUTE]
    assert total_flops(backward) - total_flops(repeated) == total_flops(plain)
    own = [op.work for op in backward if op.phase is not Phase.RECOMPUTE]
    assert own == [op.work for op in plain]
    assert kept_bytes(some) <= kept_bytes(none)
    for kind in ("B", "W"):
        assert remaining_bytes(some, kind) <= remaining_bytes(none)
    halves = [op.work for kind in ("I", "W") for op in ops_of(some, kind)]
    assert sorted(map(repr, halves)) == sorted(repr(op.work) for op in backward)
    forward = {tensor for op in ops_of(some, "F") for tensor in op.saves}
    saved = forward | {tensor for op in backward for tensor in op.saves}
    assert saved >= {tensor for op in backward for tensor in op.reads}


# The scenario's section.


def test_selective_recomputes_the_core_and_modules_imply_selective() -> None:
    both = RecomputePolicy.model_validate({"modules": ["mlp", "core_attention"]})
    assert (both.strategy, both.modules) == ("selective", ("core_attention", "mlp"))
    assert both == RecomputePolicy(strategy="selective", modules=("core_attention", "mlp"))
    one = gpt(recompute={"modules": ["core_attention"]})
    assert one.recompute == gpt(recompute="selective").recompute
