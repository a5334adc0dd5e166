"""Multi-head latent attention: parameters, FLOPs, bytes and communication counted by hand."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, total_flops, total_model_flops
from simtrain.workload.record import record_pass
from simtrain.workload.work import Collective
from tests.helpers.toys import plan_of, saved_bytes, scenario_with

DENSE = {"activation": "swiglu", "normalization": "rms_norm", "biases": False, "hidden_dropout": 0}
KINDS: Any = ("F", "B")


@st.composite
def latent(draw: st.DrawFn) -> Scenario:
    """Draw one layer of any size on up to four ranks."""
    t = draw(st.sampled_from([1, 2, 4]))
    size = st.integers(1, 60)
    sizes = {
        "q_lora_rank": draw(st.none() | size),
        "kv_lora_rank": draw(size),
        "qk_head_dim": 8 * draw(st.integers(1, 6)),
        "qk_pos_emb_head_dim": 8 * draw(st.integers(1, 4)),
        "v_head_dim": 8 * draw(st.integers(1, 6)),
    }
    model = {
        "num_layers": 1,
        "hidden_size": t * draw(size),
        "num_attention_heads": t * draw(st.integers(1, 4)),
        "seq_length": t * draw(st.integers(1, 50)),
        "ffn_hidden_size": t * draw(size),
        "vocab_size": 128 * t,
        "latent_attention": sizes,
        "qk_norm": draw(st.booleans()),
    }
    return scenario_with(
        DENSE | model,
        batch={"micro": draw(st.integers(1, 3)), "global": 6},
        parallelism={"tensor": t, "sequence_parallel": t > 1 and draw(st.booleans())},
        attention_backend="fused",
        recompute=draw(st.sampled_from(["none", "selective"])),
    )


def weights(scenario: Scenario) -> tuple[int, int]:
    """Return the elements of the layer's replicated matrices, and of its sharded matrices."""
    m = scenario.model
    sizes = m.latent_attention
    assert sizes
    h, a, query = (
        m.hidden_size,
        m.num_attention_heads,
        sizes.qk_head_dim + sizes.qk_pos_emb_head_dim,
    )
    down = h * (sizes.kv_lora_rank + sizes.qk_pos_emb_head_dim) + h * (sizes.q_lora_rank or 0)
    up = (sizes.q_lora_rank or h) * a * query
    up += sizes.kv_lora_rank * a * (sizes.qk_head_dim + sizes.v_head_dim)
    return down, up + a * sizes.v_head_dim * h + 3 * h * m.ffn_hidden_size


def layer_ops(scenario: Scenario) -> tuple[list[Op], list[Op]]:
    plan = plan_of(scenario)
    forward, backward = ([*record_pass(plan.layers_pass(1, kind)).ops] for kind in KINDS)
    return forward, backward


@given(latent())
def test_parameters_by_hand(scenario: Scenario) -> None:
    m, t = scenario.model, scenario.parallelism.tensor
    down, divided = weights(scenario)
    norms = 2 * m.hidden_size
    if m.qk_norm and m.latent_attention:
        norms += m.latent_attention.kv_lora_rank + (m.latent_attention.q_lora_rank or 0)
    (stage,) = plan_of(scenario).stage_parameters
    assert stage.layers == down + norms + Fraction(divided, t)
    # Gradients of replicated parameters are partial sums. The final norm is replicated too.
    assert stage.partial_sums == down + norms + m.hidden_size


@given(latent())
def test_flops_by_hand(scenario: Scenario) -> None:
    """Down projections process only a rank's own tokens. A product with scores has s² of them, and
    the kernel computes half.
    """
    m, split, sizes = scenario.model, scenario.parallelism, scenario.model.latent_attention
    assert sizes
    tokens = m.seq_length * scenario.batch.micro
    down, divided = weights(scenario)
    t, parts = split.tensor, split.tensor if split.sequence_parallel else 1
    linear = 2 * tokens * (Fraction(down, parts) + Fraction(divided, t))
    scores = Fraction(tokens * m.seq_length * m.num_attention_heads, t)
    query, value = sizes.qk_head_dim + sizes.qk_pos_emb_head_dim, sizes.v_head_dim
    forward, backward = layer_ops(scenario)
    again = scenario.recompute.strategy == "selective"
    assert total_flops(forward) == linear + scores * (query + value)
    fused = 3 * query + 2 * value + (query + value if again else 0)
    assert total_flops(backward) == 2 * linear + scores * fused
    whole = 2 * tokens * (down + divided) + 2 * t * scores * (query + value)
    assert total_model_flops(forward) == pytest.approx(whole / t, rel=1e-3, abs=t)


def test_unfused_latent_attention_computes_and_saves_all_scores() -> None:
    """Products with scores have s² of them each way, with heads of different sizes. Without
    dropout, the softmax is saved, where the fused kernel saves an fp32 number per row.
    """
    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32}
    model = sizes | {"latent_attention": {"kv_lora_rank": 8}, "attention_dropout": 0}
    fused, unfused = (
        scenario_with(model, attention_backend=backend) for backend in ("fused", "unfused")
    )
    scores, query, value = 4 * 32**2, 128 + 64, 128
    forward, backward = layer_ops(unfused)
    fused_forward, fused_backward = layer_ops(fused)
    half = scores * (query + value)
    assert total_flops(forward) == total_flops(fused_forward) + half
    whole = 2 * 2 * scores * (query + value)
    assert total_flops(backward) == total_flops(fused_backward) + whole - scores * (
        3 * query + 2 * value
    )
    assert saved_bytes(forward) == saved_bytes(fused_forward) + 2 * scores - 4 * 4 * 32


@given(latent())
def test_saved_bytes_by_hand(scenario: Scenario) -> None:
    """Saved: inputs of norms and products, and the tensors that the backward kernel reads."""
    m, split, sizes = scenario.model, scenario.parallelism, scenario.model.latent_attention
    assert sizes
    tokens = m.seq_length * scenario.batch.micro
    latents = (sizes.kv_lora_rank + (sizes.q_lora_rank or 0)) * (2 if m.qk_norm else 1)
    local = 2 * tokens * (4 * m.hidden_size + latents)
    query = sizes.qk_head_dim + sizes.qk_pos_emb_head_dim
    heads = 2 * (2 * query + 2 * sizes.v_head_dim)
    divided = tokens * m.num_attention_heads * heads + 2 * tokens * 3 * m.ffn_hidden_size
    if scenario.recompute.strategy == "none":
        divided += 4 * tokens * m.num_attention_heads
    expected = Fraction(local, split.tensor if split.sequence_parallel else 1)
    expected += Fraction(divided, split.tensor)
    plan = plan_of(scenario)
    assert pass_memory(plan.layers_pass(1, "F")).remaining_bytes == expected
    assert pass_memory(plan.layers_pass(1, "B")).remaining_bytes == 0


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("rank", [None, 24])
def test_communication_by_hand(sequence: bool, rank: int | None) -> None:
    """With sequence parallelism, latents are gathered in both passes, and their gradients are
    reduce-scattered. Without it, the gradients are all-reduced.
    """
    sizes = {"q_lora_rank": rank, "kv_lora_rank": 40, "qk_pos_emb_head_dim": 16}
    one = scenario_with(
        DENSE | SMALL | {"latent_attention": sizes, "num_layers": 1},
        parallelism={"tensor": 2, "sequence_parallel": sequence},
        attention_backend="fused",
    )
    found = [
        sorted(
            (str(op.work.kind), op.work.array_bytes // (2 * 64))
            for op in ops
            if isinstance(op.work, Collective) and "MLP" not in op.name
        )
        for ops in layer_ops(one)
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


SMALL = {"hidden_size": 128, "num_attention_heads": 4, "seq_length": 64, "ffn_hidden_size": 256}
