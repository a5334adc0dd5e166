"""Dense models: published numbers of parameters, and layers of every kind counted by hand."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given

from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario, load_scenario
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.record import record_pass
from simtrain.workload.work import Collective, FusedAttention
from tests.helpers.dense_models import CHOICES, dense
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


# --------------------------------------------------------------------------- layers of every kind


def ops_of(scenario: Scenario, kind: Any) -> list[Op]:
    return [*record_pass(plan_of(scenario).layers_pass(1, kind)).ops]


def weights_by_hand(scenario: Scenario) -> int:
    """Return the elements of a layer's matrices: Q, K, V, projection, one or two up, and down."""
    m = scenario.model
    queries, keys = (n * m.kv_channels for n in (m.num_attention_heads, m.num_query_groups))
    matrices = 3 if m.activation in ("swiglu", "geglu") else 2
    return m.hidden_size * (2 * queries + 2 * keys + matrices * m.ffn_hidden_size)


def vectors_by_hand(scenario: Scenario) -> tuple[int, int]:
    """Return the elements of a layer's sharded biases, and of its norms and replicated biases."""
    m = scenario.model
    outputs = (m.num_attention_heads + 2 * m.num_query_groups) * m.kv_channels
    up = m.ffn_hidden_size * (2 if m.activation in ("swiglu", "geglu") else 1)
    divided = (outputs if m.qkv_biases else 0) + (up if m.biases else 0)
    of_norm = 2 if m.normalization == "layer_norm" else 1
    norms = 1 if m.parallel_attention_mlp == "one_norm" else 2
    whole = of_norm * (norms * m.hidden_size + (2 * m.kv_channels if m.qk_norm else 0))
    return divided, whole + (2 * m.hidden_size if m.biases else 0)


@given(dense())
def test_parameters_by_hand(scenario: Scenario) -> None:
    model, t = scenario.model, scenario.parallelism.tensor
    divided, whole = vectors_by_hand(scenario)
    weights = weights_by_hand(scenario)
    (stage,) = plan_of(scenario).stage_parameters
    assert stage.layers == Fraction(weights + divided, t) + whole
    tables = model.vocab_size * (1 if model.tied_embeddings else 2)
    tables += model.seq_length if model.position_embedding == "learned" else 0
    final = 2 if model.normalization == "layer_norm" else 1
    expected = weights + divided + whole + (tables + final) * model.hidden_size
    assert plan_of(scenario).num_parameters == expected


@given(dense())
def test_flops_by_hand(scenario: Scenario) -> None:
    """2 FLOPs per weight and token. A product with scores has 2 s² c per head;
    fused, half of it.
    """
    m, t = scenario.model, scenario.parallelism.tensor
    tokens = m.seq_length * scenario.batch.micro
    linear = 2 * tokens * weights_by_hand(scenario)
    product = 2 * tokens * m.seq_length * m.num_attention_heads * m.kv_channels
    fused = scenario.attention_backend == "fused"
    forward, backward = (total_flops(ops_of(scenario, kind)) for kind in ("F", "B"))
    assert forward == Fraction(linear + (product if fused else 2 * product), t)
    scores = Fraction(5 * product, 2) if fused else 4 * product
    assert backward == Fraction(2 * linear + scores, t)


@given(dense())
def test_saved_bytes_by_hand(scenario: Scenario) -> None:
    """Saved: inputs of norms and products, Q, K, V, context, input and output of the activation,
    dropout masks, scores.

    Unfused attention saves keys and values of groups repeated for each head.
    """
    m, split = scenario.model, scenario.parallelism
    tokens = m.seq_length * scenario.batch.micro
    a, g, c = m.num_attention_heads, m.num_query_groups, m.kv_channels
    gated = m.activation in ("swiglu", "geglu")
    # Inputs and outputs of norms, and dropout masks. If attention and MLP are parallel, all norms
    # read the layer's input, which is saved once, and there is one mask.
    kept, masks = {"none": (4, 2), "one_norm": (2, 1), "two_norms": (3, 1)}[
        m.parallel_attention_mlp
    ]
    local = tokens * m.hidden_size * (kept * 2 + (masks if m.hidden_dropout else 0))
    rows = a * tokens
    divided = 2 * tokens * (2 * (a + g) * c + (a + g) * c * m.qk_norm)
    divided += 2 * tokens * m.ffn_hidden_size * (3 if gated else 2)
    if scenario.attention_backend == "fused":
        divided += 4 * rows
    else:
        divided += rows * m.seq_length * (5 if m.attention_dropout else 2)
        divided += 2 * 2 * tokens * a * c if g < a else 0
    expected = Fraction(local, split.tensor if split.sequence_parallel else 1)
    memory = pass_memory(plan_of(scenario).layers_pass(1, "F"))
    assert memory.remaining_bytes == expected + Fraction(divided, split.tensor)
    assert pass_memory(plan_of(scenario).layers_pass(1, "B")).remaining_bytes == 0


@given(dense())
def test_tensor_parallel_communication_equals_gpts(scenario: Scenario) -> None:
    """Communication depends only on the number of tokens and the hidden size."""
    plain = scenario_with(TINY).model
    gpt = scenario.replace({f"model.{field}": getattr(plain, field) for field in CHOICES})
    for kind in ("F", "B"):
        assert collectives(ops_of(scenario, kind)) == collectives(ops_of(gpt, kind))


TINY = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 8}


def collectives(ops: Iterable[Op]) -> list[Collective]:
    return [op.work for op in ops if isinstance(op.work, Collective)]


# ------------------------------------------------------------------------------- kernels one by one


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


def test_without_dropout_and_biases_there_are_no_kernels_of_them() -> None:
    scenario = llama(attention_dropout=0)
    plan = plan_of(scenario)
    names = [op.name for kind in ("F", "B") for op in record_pass(first_pass(plan, kind)).ops]
    assert not [name for name in names if "dropout" in name or "bias" in name]
    with_biases = plan_of(scenario.replace({"model.biases": True, "model.qkv_biases": True}))
    names = [op.name for op in record_pass(first_pass(with_biases, "B")).ops]
    assert len([name for name in names if "bias gradient" in name]) == 2 * 4


def first_pass(plan: Plan, kind: Any) -> Any:
    return plan.chunk_pass(plan.chunks[0], kind, saves_all=False)


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
