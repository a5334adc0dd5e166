"""Mamba-2 layers and hybrid models: parameters, FLOPs, bytes and saved tensors by hand."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.scenario import Scenario, check_scenario, load_scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.ops import Op, total_flops, total_model_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.work import ScanKernel
from tests.helpers.lifetimes import by_hand, bytes_of
from tests.helpers.toys import (
    kept_bytes,
    layer_parameters,
    ops_of,
    pass_with,
    plan_of,
    scenario_with,
)

DENSE = {"activation": "squared_relu", "normalization": "rms_norm", "biases": False}
KINDS: Any = ("F", "B")


def hybrid(pattern: str, model: dict[str, Any], **sections: Any) -> Scenario:
    fields = DENSE | {"hidden_dropout": 0, "position_embedding": "none", "vocab_size": 1024}
    fields |= {"num_layers": len(pattern), "layer_pattern": pattern, "num_attention_heads": 8}
    fields |= {"kv_channels": 8}
    stack = {"software": {"stack": "megatron_core"}, "attention_backend": "fused"}
    return scenario_with(fields | model, **stack | sections)


@st.composite
def mamba(draw: st.DrawFn) -> Scenario:
    """Draw one Mamba-2 layer of any size on up to four ranks."""
    t = draw(st.sampled_from([1, 2, 4]))
    groups = t * draw(st.integers(1, 3))
    sizes = {
        "num_heads": groups * draw(st.integers(1, 3)),
        "head_dim": draw(st.integers(1, 40)),
        "state_dim": draw(st.integers(1, 40)),
        "num_groups": groups,
        "chunk_size": draw(st.sampled_from([4, 16, 64])),
    }
    length = {
        "hidden_size": 8 * draw(st.integers(1, 9)),
        "seq_length": t * draw(st.integers(1, 50)),
    }
    return hybrid(
        "M",
        length | {"mamba": sizes},
        batch={"micro": draw(st.integers(1, 3)), "global": 6},
        parallelism={"tensor": t, "sequence_parallel": t > 1 and draw(st.booleans())},
    )


class Sizes:
    """The sizes of a Mamba-2 layer on one rank."""

    def __init__(self, scenario: Scenario) -> None:
        model, self.t = scenario.model, scenario.parallelism.tensor
        assert model.mamba
        self.h, self.n, self.q = model.hidden_size, model.mamba.state_dim, model.mamba.chunk_size
        self.heads = model.num_mamba_heads // self.t
        self.g = model.mamba.num_groups // self.t
        self.d = self.heads * model.mamba.head_dim
        self.tokens = model.seq_length * scenario.batch.micro
        # Each sequence is filled up to whole chunks.
        self.filled = scenario.batch.micro * -(-model.seq_length // self.q) * self.q
        self.local = self.tokens // (self.t if scenario.parallelism.sequence_parallel else 1)
        self.conv = self.d + 2 * self.g * self.n
        self.width = self.d + self.conv + self.heads


def layer(scenario: Scenario) -> Chunk:
    return Chunk(gpt_blocks(scenario).runs[1:-1])


def passes(scenario: Scenario) -> list[tuple[Op, ...]]:
    return [ops_of(pass_with(scenario, layer(scenario), kind)) for kind in KINDS]


@settings(max_examples=12)
@given(mamba())
def test_parameters(scenario: Scenario) -> None:
    one = Sizes(scenario)
    convolution, of_heads, norms = 5 * one.conv, 3 * one.heads, one.d + one.h
    rank = one.h * one.width + one.d * one.h + convolution + of_heads + norms
    assert layer_parameters(scenario) == rank


@settings(max_examples=12)
@given(mamba())
def test_flops(scenario: Scenario) -> None:
    """Scores of a chunk are computed whole, products over them below the diagonal."""
    one = Sizes(scenario)
    forward, backward = passes(scenario)
    linear = 2 * one.tokens * one.h * (one.width + one.d)
    scores = 2 * one.filled * one.q * one.g * one.n
    masked, state = one.filled * one.q * one.d, 2 * one.filled * one.d * one.n
    assert total_flops(forward) == linear + scores + masked + 2 * state
    # Again: scores and states. Gradients: of the scores' two operands, of three products over
    # scores, and of four products with states.
    again = scores + state
    assert total_flops(backward) == 2 * linear + again + 2 * scores + 3 * masked + 4 * state
    model = linear + 7 * one.tokens * one.d * one.n
    assert total_model_flops(forward) == model
    assert total_model_flops(backward) == 2 * model


@settings(max_examples=12)
@given(mamba())
def test_saved_tensors(scenario: Scenario) -> None:
    """The projected input is saved, but neither the convolution's output nor any state."""
    one = Sizes(scenario)
    saved = 2 * one.local * one.h  # of the norm
    saved += 2 * one.local * one.h  # of the input projection
    saved += 2 * one.tokens * (one.width + one.d)  # of the scan
    saved += 2 * one.tokens * one.d + 4 * one.tokens * one.g  # of the group norm
    saved += 2 * one.tokens * one.d  # of the output projection
    assert kept_bytes(record_pass(pass_with(scenario, layer(scenario), "F"))) == saved


FORWARD = """
causal convolution: c > c + p - p
chunk cumsum: s > t t
chunk state: b x t t > S
state passing: S > N - S
chunk scores: b b > q
chunk scan: q x x t t b N > x x
"""
BACKWARD = """
causal convolution again: c > c
step copy: s > s + c
chunk cumsum: s > t t
chunk scores: b b > q
chunk state: b x t t > S
state passing: S > S - S
gate gradient: x x x x > x x - x
state gradient: b t x > S
state passing gradient: S S > N N - S S
chunk scan gradient: x x q t t b N > (x) t
B gradient: x N t t b > B t
C gradient: x N t b > B t
scores gradient: x x t t > q
B gradient sum: b q B > (b)
C gradient sum: b q B > (b)
decay flip: t > t - t
decay cumsum: t > t - t
decay flip back: t > t - t
decay gradient: x x t t q > t - t
decay gradient sum: t t > t + t - t t
decay gradient total: t t > t + t - t t
chunk cumsum gradient: t t s > (s)
"""
"""The kernels of the scan. Arrays: convolution's channels c, time steps s and in fp32 t, x, B or C
b and in fp32 B, states S and in 16 bits N, scores q, and the projected input p.

Forward: both p and the outputs are saved. Backward: gradients of the output (x) and of p exist
before; those of the convolution's output have an array of their own.
"""


@settings(max_examples=12)
@given(mamba())
def test_bytes_of_the_scan(scenario: Scenario) -> None:
    one = Sizes(scenario)
    b, states = 2 * one.tokens * one.g * one.n, 4 * one.filled // one.q * one.d * one.n
    sizes = {"c": 2 * one.tokens * one.conv, "p": 2 * one.tokens * one.width}
    sizes |= {"x": 2 * one.tokens * one.d, "s": 2 * one.tokens * one.heads}
    sizes |= {"t": 4 * one.filled * one.heads, "q": 4 * one.filled * one.q * one.g}
    sizes |= {"b": b, "B": 2 * b, "S": states, "N": states // 2}
    forward, backward = [*map(bytes_of, passes(scenario))]
    for found, table, before in ((forward, FORWARD, ""), (backward, BACKWARD, "x p")):
        kernels = by_hand(table, sizes, before)
        names = [name for name, *_ in kernels]
        assert [row for row in found if row[0] in names] == kernels
    last = (2 * sizes["c"], sizes["c"], 2 * sizes["p"] + sizes["c"])  # input, and both gradients
    assert ("causal convolution gradient", *last) in backward
    of_heads = [row for row in (*forward, *backward) if "decay rate" in row[0] or "bias" in row[0]]
    assert {row[1:] for row in of_heads} == {(4 * one.heads, 4 * one.heads, 0)}


def test_the_profile_counts_the_bytes_of_the_scan_without_a_gate() -> None:
    """`calibrate/published/h100_sxm.yaml` has 104,704 bytes per token for Granite 4.0 H Small."""
    sizes = {"num_heads": 128, "head_dim": 64, "state_dim": 128, "num_groups": 1, "chunk_size": 256}
    model = {"hidden_size": 4096, "seq_length": 8192, "mamba": sizes}
    scenario = hybrid("M", model, batch={"micro": 1, "global": 1}, parallelism={})
    forward, _ = passes(scenario)
    moved = sum(op.work.moved_bytes for op in forward if isinstance(op.work, ScanKernel))
    gate_and_its_output = 2 * 2 * 8192 * 8192
    assert moved - gate_and_its_output == 104_704 * 8192


@settings(max_examples=12)
@given(mamba(), st.sampled_from([2, 4]))
def test_context_parallel_ranks_exchange_tokens_for_channels(scenario: Scenario, n: int) -> None:
    """Each rank sends all that it has projected, with a copy of B and C for ranks without."""
    model = scenario.model
    assert model.mamba
    t, groups = scenario.parallelism.tensor, 4 * scenario.parallelism.tensor
    sizes = {"model.seq_length": 4 * n * model.seq_length * t, "parallelism.context": n}
    heads = {"model.mamba.num_heads": 2 * groups, "model.mamba.num_groups": groups}
    few = {"model.mamba.num_heads": 4 * t, "model.mamba.num_groups": t}
    for changes, copies in ((heads, 1), (few, n)):
        split = scenario.replace(sizes | changes)
        check_scenario(split)
        one = Sizes(split)
        local = one.tokens // n
        b, steps, x = (2 * local * each for each in (one.g * one.n, one.heads, one.d))
        for ops, ending in zip(passes(split), ("", " gradient"), strict=True):
            held = {name: held for name, *_, held in bytes_of(ops)}
            arrays = 2 * local * one.width + 2 * x + 2 * copies * b + steps  # input and output
            for part, size in {"gate": x, "B": copies * b, "C": copies * b, "steps": steps}.items():
                assert held[f"{part}{ending} packed"] == arrays + 2 * size
                assert held[f"{part}{ending} all-to-all"] == arrays + 2 * size
            repeated = {arrays + copies * b} if copies > 1 else set()
            assert {held[name] for name in held if "repeated" in name} == repeated
            sent = [op.work for op in ops if "all-to-all" in op.name]
            states = 2 * copies * one.g * one.n
            there, back = 2 * one.d + states + one.heads, one.d
            assert sum(work.array_bytes for work in sent) == 2 * local * (there + back)  # type: ignore[union-attr]
            assert {work.group.num_ranks for work in sent} == {n}  # type: ignore[union-attr]
        assert layer_parameters(split) == layer_parameters(
            split.replace({"parallelism.context": 1})
        )


EXPERTS = {"num": 4, "top_k": 2, "ffn_hidden_size": 64}
MODEL = {"hidden_size": 64, "seq_length": 64, "ffn_hidden_size": 128, "experts": EXPERTS}
MODEL |= {"mamba": {"num_heads": 4, "head_dim": 16, "state_dim": 8, "num_groups": 2}}


def test_attention_and_mlp_alone_are_together_a_transformer_layer() -> None:
    model = {"hidden_size": 64, "seq_length": 64, "ffn_hidden_size": 128}
    apart = hybrid("*-" * 3, model)
    fields = DENSE | {"hidden_dropout": 0, "position_embedding": "none", "vocab_size": 1024}
    fields |= {"num_layers": 3, "num_attention_heads": 8, "kv_channels": 8}
    stack = {"software": {"stack": "megatron_core"}, "attention_backend": "fused"}
    whole = scenario_with(fields | model, **stack)
    for one, other in zip(passes(apart), passes(whole), strict=True):
        assert Counter(op.work for op in one) == Counter(op.work for op in other)
    assert plan_of(apart).num_parameters == plan_of(whole).num_parameters


NEMOTRON_H = {
    # 24 of Mamba-2, 24 of an MLP, 4 of attention; h = 4,096, 128 heads of 64, 8 groups of 128.
    "nemotron_h_8b": (8_100_852_736, 8.1e9),
    # 54, 54 and 10 of them; h = 8,192, 256 heads of 64, 8 groups of 256.
    "nemotron_h_56b": (56_324_350_464, 56e9),
}
"""Parameters by hand, and as published (arXiv 2504.03624)."""


@pytest.mark.parametrize("name", NEMOTRON_H)
def test_nemotron_h_has_its_published_number_of_parameters(name: str) -> None:
    exact, published = NEMOTRON_H[name]
    model = load_scenario(name).model
    h, v, f, n = model.hidden_size, model.vocab_size, model.ffn_hidden_size, model.num_mamba_heads
    assert model.mamba
    d, states = 64 * n, 8 * model.mamba.state_dim
    letters = Counter(model.layer_pattern)
    mamba_layer = h * (2 * d + 2 * states + n) + 5 * (d + 2 * states) + 3 * n + d * h + d + h
    attention = h * (h + 2 * 8 * 128) + h * h + h
    count = 2 * v * h + h + letters["M"] * mamba_layer
    count += letters["-"] * (2 * h * f + h) + letters["*"] * attention
    assert plan_of(load_scenario(name)).num_parameters == count == exact
    assert count == pytest.approx(published, rel=0.01)
