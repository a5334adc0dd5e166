"""Dense models: published numbers of parameters, kernels and communication by hand."""

from typing import Any

import pytest

from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario, load_scenario
from simtrain.workload.ops import Op, Phase
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, Elementwise, FusedAttention
from tests.helpers.toys import plan_of, scenario_with

PUBLISHED = {
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_72b": 72_706_203_648,
    "qwen3_8b": 8_190_735_360,
    # 2 · 151,936 · h + h + 64 (h · (64 + 16) · 128 + 64 · 128 · h + 3 h · 25,600 + 2 h + 256),
    # h = 5,120
    "qwen3_32b": 32_762_123_264,
    # 2 · 256,000 · h + 2 h + 32 (h (h + 2 · 1,024) + h² + 2 h · 24,576 + 4 h), h = 6,144
    "nemotron4_15b": 15_628_775_424,
    # 2 · 256,000 · h + 2 h + 96 (h (h + 2 · 1,536) + h² + 2 h · 73,728 + 4 h), h = 18,432
    "nemotron4_340b": 341_029_195_776,
    # 12 L h² + 13 L h + (V + s) h + 2 h, L = 96, h = 12,288, V = 51,200, s = 2,048
    "gpt3_175b": 174_615_846_912,
}
"""Numbers of parameters of published checkpoints, or computed by hand from published sizes."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_model_has_its_published_number_of_parameters(name: str) -> None:
    assert plan_of(load_scenario(name)).num_parameters == PUBLISHED[name]


def ops_of(scenario: Scenario, kind: Any) -> list[Op]:
    return [*record_pass(plan_of(scenario).layers_pass(1, kind)).ops]


def llama(**model: Any) -> Scenario:
    """Return two sequences of 64 tokens, with 8 heads of 16 channels in 2 groups, on 2 ranks."""
    sizes = {"num_layers": 2, "hidden_size": 96, "num_attention_heads": 8, "num_query_groups": 2}
    modern = {"position_embedding": "rope", "biases": False, "hidden_dropout": 0}
    return scenario_with(
        {**sizes, "kv_channels": 16, "seq_length": 64, "ffn_hidden_size": 200, **modern, **model},
        batch={"micro": 2, "global": 2},
        parallelism={"tensor": 2},
        attention_backend="fused",
    )


def moved(scenario: Scenario, name: str) -> dict[str, int]:
    """Return the bytes moved by one layer's kernels, by name, if the name contains `name`."""
    both = ops_of(scenario, "F") + ops_of(scenario, "B")
    return {op.name: op.work.moved_bytes for op in both if name in op.name}  # type: ignore[union-attr]


def test_rotation_reads_and_writes_queries_and_keys() -> None:
    """A rank has 128 tokens with 4 heads and 1 group of 16 channels, 2 bytes each."""
    query, key = 128 * 4 * 16 * 2, 128 * 16 * 2
    assert moved(llama(), "rotation") == {
        "query rotation": 2 * query,
        "key rotation": 2 * key,
        "query rotation gradient": 2 * query,
        "key rotation gradient": 2 * key,
    }
    assert not moved(llama(position_embedding="none"), "rotation")


def test_gradients_of_query_and_key_norms_read_the_input_again() -> None:
    query, key = 128 * 4 * 16 * 2, 128 * 16 * 2
    assert moved(llama(qk_norm=True), "y norm") == {
        "query norm": 2 * query,
        "key norm": 2 * key,
        "query norm gradient": 3 * query,
        "key norm gradient": 3 * key,
    }


def test_fused_attention_does_not_repeat_keys_and_values() -> None:
    """Two sequences have 2 · 4 heads of Q and output and 2 · 1 groups of K and V. Each row of
    scores has one fp32 log-sum-exp.
    """
    tensors, rows = 2 * (8 + 2) * 64 * 16 * 2, 8 * 64 * 4
    assert moved(llama(), "fused attention") == {
        "fused attention": tensors + rows,
        "fused attention gradient": 2 * tensors + rows,
    }
    alone = FusedAttention(8, 64, 16)
    assert FusedAttention(8, 64, 16, kv_heads=8).moved_bytes == alone.moved_bytes
    assert FusedAttention(8, 64, 16, kv_heads=2).flops == alone.flops


def test_unfused_attention_repeats_keys_and_values() -> None:
    """For 128 tokens, 1 group of 16 channels is copied to 4 heads. Backward, 4 gradients are
    summed.
    """
    unfused = llama().replace({"attention_backend": "unfused"})
    group = 128 * 16 * 2
    names = [f"repeated {what}{end}" for what in ("keys", "values") for end in ("", " gradient")]
    assert moved(unfused, "repeated") == dict.fromkeys(names, group + 4 * group)
    assert not moved(unfused.replace({"model.num_query_groups": 8}), "repeated")


@pytest.mark.parametrize("norms", ["one_norm", "two_norms"])
@pytest.mark.parametrize("dropout", [0, 0.1])
def test_parallel_attention_and_mlp_are_added_by_one_kernel(norms: str, dropout: float) -> None:
    """Arrays have 128 tokens of 96 channels. The kernel reads both branches and the layer's input,
    and writes their sum and, with dropout, a mask.
    """
    one = llama(parallel_attention_mlp=norms, hidden_dropout=dropout)
    size, mask = 128 * 96 * 2, 128 * 96 if dropout else 0
    sums = {name: size for name, size in moved(one, "attention and MLP ").items()}
    kernel = "dropout and residual" if dropout else "sum"
    gradient = {"attention and MLP dropout gradient": 2 * size + mask} if dropout else {}
    assert sums == {f"attention and MLP {kernel}": 4 * size + mask} | gradient
    # Attention and MLP both read the norm's output, or the layer's input. Two kernels sum their
    # gradients and that of the residual.
    assert len(moved(one, "residual sum")) == 2


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("rank", [None, 24])
def test_communication_of_latent_attention(sequence: bool, rank: int | None) -> None:
    """With sequence parallelism, latents are gathered in both passes, and their gradients are
    reduce-scattered. Without it, the gradients are all-reduced.
    """
    sizes = {"q_lora_rank": rank, "kv_lora_rank": 40, "qk_pos_emb_head_dim": 16}
    one = scenario_with(
        {"num_layers": 1, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 64}
        | {"biases": False, "hidden_dropout": 0, "latent_attention": sizes},
        parallelism={"tensor": 2, "sequence_parallel": sequence},
        attention_backend="fused",
    )
    found = [
        sorted(
            (str(op.work.kind), op.work.array_bytes // (2 * 64))
            for op in ops
            if isinstance(op.work, Collective) and "MLP" not in op.name
        )
        for ops in (ops_of(one, "F"), ops_of(one, "B"))
    ]
    query = rank or 128
    if not sequence:
        assert found == [
            [("all_reduce", 128)],
            [("all_reduce", each) for each in sorted([query, 40])],
        ]
        return
    gathered = [("all_gather", each) for each in sorted([16, 40, query])]
    again = [("all_gather", each) for each in sorted([40, query, 128])]
    scattered = [("reduce_scatter", each) for each in sorted([16, 40, query])]
    assert found == [[*gathered, ("reduce_scatter", 128)], [*again, *scattered]]


S, B, H = 24, 2, 32
SIZE, WIDE = 2 * S * B * H, 4 * S * B * H
"""Bytes of the hidden states in bf16 and in fp32."""
GPT = {"num_layers": 1, "hidden_size": H, "num_attention_heads": 4, "seq_length": S}
NAMES = [f"{part} layer norm{step}" for part in ("attention", "MLP") for step in (" to fp32", "")]


def with_norms(*, checkpointed: bool, **sections: Any) -> Scenario:
    """Return a layer whose norms are checkpointed or not."""
    software = {"checkpointed_fp32_norms": checkpointed}
    return scenario_with(GPT, batch={"micro": B, "global": B}, software=software, **sections)


def ops_by_phase(scenario: Scenario, kind: Any) -> dict[tuple[str, Phase], Op]:
    """Return the ops of a pass of a layer, each of which has a name of its own in its phase."""
    ops = ops_of(scenario, kind)
    found = {(op.name, op.phase): op for op in ops}
    assert len(found) == len(ops)
    return found


def traffic(op: Op) -> tuple[int, int]:
    """Return the bytes that a memory-bound op reads and writes."""
    assert isinstance(op.work, Elementwise)
    return op.work.read_bytes, op.work.write_bytes


def test_both_norms_of_a_layer_cast_and_run_again() -> None:
    """A norm's gradient reads that of its output in bf16 and the copy, and writes one in fp32."""
    scenario = with_norms(checkpointed=True)
    there, back = ops_by_phase(scenario, "F"), ops_by_phase(scenario, "B")
    for cast, norm in (NAMES[:2], NAMES[2:]):
        for phase, ops in ((Phase.FORWARD, there), (Phase.RECOMPUTE, back)):
            assert traffic(ops[cast, phase]) == (SIZE, WIDE)
            assert traffic(ops[norm, phase]) == (WIDE, SIZE)
        gradient = back[f"{norm} gradient", Phase.INPUT_GRADIENT]
        assert traffic(gradient) == (SIZE + WIDE, WIDE)
        from_fp32 = back[f"{norm} from fp32 gradient", Phase.INPUT_GRADIENT]
        assert traffic(from_fp32) == (WIDE, SIZE)
    again = [name for name, phase in back if phase is Phase.RECOMPUTE]
    assert sorted(again) == sorted(NAMES)


def test_checkpointed_norms_save_what_fused_ones_save() -> None:
    """The input in bf16: the copy is made again."""
    kept = [
        pass_memory(plan_of(with_norms(checkpointed=flag)).layers_pass(1, "F")).remaining_bytes
        for flag in (False, True)
    ]
    assert kept[0] == kept[1]
    back = plan_of(with_norms(checkpointed=True)).layers_pass(1, "B")
    assert pass_memory(back).remaining_bytes == 0
