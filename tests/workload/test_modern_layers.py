"""A layer like those of Llama 3, built from blocks and compared with counts by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest

from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.workload import blocks
from simtrain.workload.blocks.vocabulary import look_up
from simtrain.workload.chunk import chunk_of
from simtrain.workload.model_ends import Head
from simtrain.workload.ops import Tensor, total_flops
from simtrain.workload.record import record_pass
from simtrain.workload.tape import Block, Tape
from tests.helpers.toys import plan_of, scenario_with

# An eighth of Llama-3 70B in each direction: 64 heads in 8 groups, and gates of 3.5 h.
HEADS, GROUPS, SIZE, FFN, S, B = 64, 8, 16, 3584, 64, 2
HIDDEN = HEADS * SIZE


@dataclass(frozen=True)
class LlamaLayer:
    """Layer with RMS norms, grouped queries and SwiGLU, without biases and dropout."""

    hidden: int = HIDDEN
    heads: int = HEADS
    groups: int = GROUPS
    ffn: int = FFN
    fused: bool = False
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        size, t = self.hidden // self.heads, tape.microbatch.tensor.num_ranks
        y = blocks.norm(tape, x, "attention norm", "rms_norm")
        width = (self.heads + 2 * self.groups) * size
        y = blocks.column_linear(tape, y, width, "QKV", bias=False)
        y = blocks.attention(tape, y, size, self.groups // t, fused=self.fused, drops_out=False)
        y = blocks.row_linear(tape, y, "projection", bias=False)
        x = blocks.add(tape, y, x, "attention")
        y = blocks.norm(tape, x, "MLP norm", "rms_norm")
        y = blocks.column_linear(tape, y, 2 * self.ffn, "gate and up", bias=False)
        y = blocks.activation(tape, y, "SwiGLU", gated=True)
        y = blocks.row_linear(tape, y, "down", bias=False)
        return blocks.add(tape, y, x, "MLP")


@dataclass(frozen=True)
class WordEmbedding:
    """Embedding of words, without positions and dropout."""

    vocab: int
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        return look_up(tape, self.vocab)


def scenario(t: int, *, sequence: bool = False, recompute: str = "none") -> Scenario:
    model = {"num_layers": 4, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
    return scenario_with(
        model | {"seq_length": S, "vocab_size": 512, "tied_embeddings": False},
        parallelism={"tensor": t, "sequence_parallel": sequence},
        batch={"micro": B, "global": B},
        recompute=recompute,
    )


def plan(one: Scenario, layer: Block) -> Plan:
    model: Sequence[Block] = [WordEmbedding(512), *[layer] * 4, Head(512, tied=False)]
    return Plan(one, plan_of(one).mesh, chunk_of(model))


WEIGHTS = HIDDEN * (HEADS + 2 * GROUPS) * SIZE + HIDDEN**2 + 3 * HIDDEN * FFN


@pytest.mark.parametrize("t", [1, 4, 8])
def test_parameters(t: int) -> None:
    """Per layer h (h + 2 h/8) + h² + 3 h f weights and two norms of h; two tables, a layer norm."""
    (stage,) = plan(scenario(t), LlamaLayer()).stage_parameters
    assert stage.layers == 4 * (WEIGHTS // t + 2 * HIDDEN)
    assert stage.root == 2 * 512 * HIDDEN // t + 2 * HIDDEN
    assert stage.tied == 0


def test_a_layer_of_llama_3_70b() -> None:
    """855,654,400 parameters: (70,553,706,496 - 2 · 128,256 · 8,192 - 8,192) / 80."""
    layer = LlamaLayer(8192, 64, 8, 28672)
    one = scenario_with(
        {"num_layers": 1, "hidden_size": 8192, "num_attention_heads": 64, "seq_length": 64}
    )
    (stage,) = plan_of_layers(one, layer)
    assert stage == 855_654_400 == (70_553_706_496 - 2 * 128_256 * 8192 - 8192) // 80


def plan_of_layers(one: Scenario, layer: Block) -> list[int]:
    return [part.layers for part in Plan.of(one, 8, layers=[layer]).stage_parameters]


@pytest.mark.parametrize("t", [1, 4, 8])
@pytest.mark.parametrize("fused", [False, True])
def test_flops(t: int, fused: bool) -> None:
    """Groups reduce products with weights, not with scores. A fused kernel halves the latter."""
    one = plan(scenario(t), LlamaLayer(fused=fused))
    weights, scores = 2 * S * B * WEIGHTS, 4 * S**2 * B * HIDDEN
    forward, backward = (
        total_flops(record_pass(one.layers_pass(1, kind)).ops) for kind in ("F", "B")
    )
    if fused:
        assert forward == Fraction(weights + scores // 2, t)
        assert backward == Fraction(2 * weights + 5 * scores // 4, t)
    else:
        assert forward == Fraction(weights + scores, t) and backward == 2 * forward


@pytest.mark.parametrize("t", [1, 4, 8])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("fused", [False, True])
def test_saved_bytes(t: int, recompute: str, fused: bool) -> None:
    """Saved per layer: inputs and outputs of both norms, Q, K, V, the context, both gates, their
    product.

    Unfused attention saves the softmax, and K and V repeated for each head. A fused kernel saves 4
    bytes per row of scores.
    """
    one = plan(scenario(t, sequence=t > 1, recompute=recompute), LlamaLayer(fused=fused))
    tokens = S * B
    norms = 4 * 2 * tokens * HIDDEN
    attention = 2 * tokens * (HIDDEN + 2 * GROUPS * SIZE + HIDDEN)
    gates = 2 * tokens * 3 * FFN
    rows = HEADS * tokens * (4 if fused else 2 * S)
    repeated = 0 if fused else 2 * tokens * 2 * HIDDEN
    expected = {
        "none": norms + attention + gates + rows + repeated,
        "selective": norms + attention + gates,
        "full": 2 * tokens * HIDDEN,
    }
    left = pass_memory(one.layers_pass(3, "F")).remaining_bytes
    assert left == 3 * Fraction(expected[recompute], t)


def test_without_dropout_there_are_no_masks_and_no_kernels() -> None:
    one = plan(scenario(4), LlamaLayer())
    chunk = one.chunks[0]
    names = [
        op.name
        for kind in ("F", "B")
        for op in record_pass(one.chunk_pass(chunk, kind, saves_all=False)).ops
    ]
    assert not [name for name in names if "dropout" in name or "bias" in name]
