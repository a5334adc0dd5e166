"""Embedding, head, batch, parameters and optimizer step, compared with closed formulas."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.mesh import Axis
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.parts import TransferPart, structure_of
from simtrain.scenario import Scenario
from simtrain.workload.chunk import Chunk, Parameters
from simtrain.workload.model_ends import GetBatch
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.optimizer import StepOps, step_ops
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers.lifetimes import by_hand, bytes_of, moved
from tests.helpers.toys import (
    chunk_with,
    kept_bytes,
    layer_scenarios,
    ops_of,
    paper_scenario,
    pass_with,
    plan_of,
    scenario_with,
    shape_of,
    waits_of,
)

FP32 = 4


def passes(scenario: Scenario, **blocks: bool) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Return the ops of a chunk of these blocks without layers, forward and backward."""
    chunk = chunk_with(scenario, **blocks)
    return ops_of(pass_with(scenario, chunk, "F")), ops_of(pass_with(scenario, chunk, "B"))


def collectives(ops: tuple[Op, ...]) -> list[tuple[str, str, int]]:
    works = ((op.name, op.work) for op in ops)
    return [(x, y.kind, y.array_bytes) for x, y in works if isinstance(y, Collective)]


@given(layer_scenarios())
def test_saved_bytes_and_flops_of_embedding_and_head(scenario: Scenario) -> None:
    """Section 4.3 with p = 1: a mask of sbh/t bytes, and 4sbh/t (1 + v/h) bytes and 6sbhv/t FLOPs
    of the head.
    """
    shape = shape_of(scenario)
    s, b, h, v, t = shape.seq_length, shape.microbatch, shape.hidden, shape.vocab, shape.tensor
    chunk = chunk_with(scenario, embedding=True, head=True)
    forward, backward = (record_pass(pass_with(scenario, chunk, kind)) for kind in ("F", "B"))
    split = t if shape.sequence_parallel else 1
    kept = Fraction(s * b * h, split) + Fraction(4 * s * b * h, split) + Fraction(4 * s * b * v, t)
    assert kept_bytes(forward) == kept
    assert total_flops((*forward.ops, *backward.ops)) == Fraction(6 * s * b * h * v, t)


@pytest.mark.parametrize("sequence", [False, True])
def test_collectives_of_the_embedding(sequence: bool) -> None:
    """Each rank looks up its shard of the vocabulary, and the results are summed."""
    forward, backward = passes(paper_scenario("22B", sequence=sequence), embedding=True)
    sbh2 = 2 * 2048 * 4 * 6144
    kind = CollectiveKind.REDUCE_SCATTER if sequence else CollectiveKind.ALL_REDUCE
    assert collectives(forward) == [("embedding sum", kind, sbh2)]
    gathered = [("embedding sum", CollectiveKind.ALL_GATHER, sbh2)] if sequence else []
    assert collectives(backward) == gathered


def test_the_table_gradient_is_added_to_the_buffer() -> None:
    """A 16-bit gradient is zeroed and filled. One kernel then adds it to the fp32 buffer."""
    _, backward = passes(paper_scenario("22B"), embedding=True)
    table = 51200 // 8 * 6144
    total = {name: sum(sizes) for name, sizes in moved(backward).items()}
    assert total["embedding table zero"] == 2 * table
    assert total["embedding accumulate"] == (2 + 4 + 4) * table
    assert total["embedding scatter"] == 3 * 2 * 2048 * 4 * 6144


def test_cross_entropy_reduces_three_fp32_numbers_a_token() -> None:
    forward, _ = passes(paper_scenario("22B"), head=True)
    tokens = 2048 * 4 * FP32
    names = [f"cross entropy {number}" for number in ("maximum", "target", "sum")]
    assert collectives(forward) == [(name, CollectiveKind.ALL_REDUCE, tokens) for name in names]


@pytest.mark.parametrize("sequence", [False, True])
def test_the_heads_input_gradient_is_reduced_behind_its_weight_gradient(sequence: bool) -> None:
    scenario = paper_scenario("22B", sequence=sequence)
    record = record_pass(pass_with(scenario, chunk_with(scenario, head=True), "B"))
    names, waits = [op.name for op in record.ops], waits_of(record)
    reduced = "output layer g" if sequence else "output layer f"
    at = names.index(reduced)
    assert names[at - 1] == "logits input gradient"
    assert names[at + 1] == "logits weight gradient"
    assert at not in waits[at + 1]
    assert at in waits[at + 2]


def gpt3(**sections: object) -> Scenario:
    base = paper_scenario("175B").model_dump(by_alias=True, exclude={"name", "description"})
    return scenario_with(**(base | sections))


THOUSAND = Parameters(total=1000, root=300, tied=200, partial_sums=60)


def step_of(scenario: Scenario, parameters: Parameters) -> StepOps:
    return step_ops(plan_of(scenario).step_options, parameters)


WIDE = """
gradient norm: f >
gradient clip: f > f
Adam: f f f f > f f f
"""
STEP = WIDE + "master weights to model: f > m"
ZERO = "\ngradient zero: > G"
NARROW = """
gradient norm: g >
gradient clip: g > g
Adam: g m m m m > m m m m
"""
MIXED: dict[str, Any] = {"compute": "bf16"}
FP8 = {"compute": "fp8", "fp8_recipe": "delayed"}
KEPT = FP8 | {"fp8_parameters": True}
SIXTEEN = {
    "gradients": "bf16",
    "exp_avg": "bf16",
    "exp_avg_sq": "bf16",
    "main_parameters": "remainder",
}


@pytest.mark.parametrize(
    ("precision", "kernels"),
    [
        (MIXED, STEP + ZERO),
        # Losses are scaled: gradients are unscaled and checked in place.
        ({"compute": "fp16"}, "gradient unscale and check: f > f" + STEP + ZERO),
        (MIXED | {"gradients": "bf16"}, "gradient to fp32: g > f" + STEP + ZERO),
        ({"compute": "fp32"}, WIDE + ZERO),
        # 16 bits of each master weight, and two moments; the others are the parameter's.
        (SIXTEEN, NARROW + ZERO),
        # Copies by rows and by columns, made once.
        (FP8, STEP + ZERO + "\nweights to fp8: w w > w w"),
        (
            FP8 | {"fp8_recipe": "tensorwise"},
            STEP + ZERO + "\nweights largest: w w >\nweights to fp8: w w > w w",
        ),
        (FP8 | {"fp8_recipe": "blockwise"}, STEP + ZERO + "\nweights to fp8: w w > w w b b"),
        # A shard is cast from 16 bits, and transposed once it is gathered.
        (KEPT, STEP + "\nweights to fp8: v v > v" + ZERO + "\nweights transpose: w > w"),
        (
            KEPT | {"fp8_recipe": "tensorwise"},
            STEP
            + "\nweights largest: v v v v >\nweights to fp8: v v > v"
            + ZERO
            + "\nweights transpose: w > w",
        ),
        # Blocks of rows and of columns differ, so both are cast from 16 bits.
        (KEPT | {"fp8_recipe": "mxfp8"}, STEP + ZERO + "\nweights to fp8: w w > w w s s"),
    ],
)
def test_bytes_of_the_optimizer_step(precision: dict[str, Any], kernels: str) -> None:
    """Two ranks share 40,000 parameters, of which 2**15 are operands in fp8."""
    is_fp8, gradient = "fp8_recipe" in precision, 2 if precision.get("gradients") == "bf16" else 4
    sizes = {"f": 80_000, "m": 40_000, "g": 20_000 * gradient, "G": 40_000 * gradient}
    # Scales: a byte for each 32 numbers, or 4 bytes for each 128 x 128.
    sizes |= {"v": 2**14, "w": 2**15, "s": 2**15 // 32, "b": 2 * 4}
    sections: dict[str, Any] = {"memory": {"zero_stage": 1}, "cluster": "h100_sxm"}
    sections |= {"parallelism": {"tensor": 8, "pipeline": 8, "interleave": 3, "data": 2}}
    scenario = gpt3(
        precision=precision,
        batch={"micro": 1, "global": 128},
        attention_backend="fused" if is_fp8 else "unfused",
        **sections,
    )
    steps = step_of(scenario, replace(THOUSAND, total=40_000, in_fp8=2**15 * is_fp8))
    ops = [op for field in ("norm", "update", "weight_cast") for op in steps.get(field, ())]
    assert [row[:3] for row in bytes_of(ops)] == [row[:3] for row in by_hand(kernels, sizes)]
    average = ("gradient average", sizes["G"], sizes["G"])
    assert [row[:3] for row in bytes_of(steps["average"])] == [average]


def test_collectives_of_the_optimizer_step() -> None:
    grid = {"tensor": 8, "pipeline": 8, "interleave": 3, "data": 2, "sequence_parallel": True}
    scenario = gpt3(parallelism=grid, batch={"micro": 1, "global": 128})
    ops = step_of(scenario, THOUSAND)

    def only(field: str) -> tuple[int, int, tuple[Axis, ...]]:
        (work,) = (op.work for op in ops[field])
        assert isinstance(work, Collective)
        assert work.kind is CollectiveKind.ALL_REDUCE
        return work.array_bytes, work.group.num_ranks, work.group.axes

    assert only("data_reduction") == (4000, 2, ("cp", "dp"))
    assert only("sequence_parallel") == (240, 8, ("tp",))
    # Of the eight stages only the first and the last hold the embedding.
    assert only("embedding") == (800, 2, ("pp",))
    assert only("norm_reduction") == (4, 64, ("tp", "pp"))
    others = [op for field in ("average", "norm", "update") for op in ops[field]]
    assert collectives(tuple(others)) == []


@given(layer_scenarios(), st.booleans())
def test_bytes_of_getting_a_batch(scenario: Scenario, causal_mask: bool) -> None:
    """The tensors are those of Megatron-LM's `get_batch` and `get_ltor_masks_and_position_ids`.

    The text is int64 [b, s + 1]. Labels and inputs are copies of it. The attention mask is fp32
    ones [s, s], then their lower triangle, then a comparison with one byte per element. The loss
    mask is fp32 [b, s]. Positions are int64 [s], shared by all sequences.
    """
    shape = shape_of(scenario)
    s, b = shape.seq_length, shape.microbatch
    text = 8 * b * (s + 1)
    expected = {
        "sizes to device": (0, 8),
        "sizes to host": (8, 0),
        "tokens joined": (text, text),
        "tokens to device": (0, text),
        "labels": (text, text),
        "inputs": (text, text),
        "loss mask": (0, 4 * b * s),
        "positions": (0, 8 * s),
    }
    if causal_mask:
        expected |= {
            "mask ones": (0, 4 * s * s),
            "mask triangle": (4 * s * s, 4 * s * s),
            "mask below one half": (4 * s * s, s * s),
        }
    chunk = Chunk(((GetBatch(causal_mask), 1),))
    assert moved(ops_of(pass_with(scenario, chunk, "F"))) == expected
    broadcasts = [size for _, _, size in collectives(ops_of(pass_with(scenario, chunk, "F")))]
    assert broadcasts == ([8, text] if shape.tensor > 1 else [])
    assert ops_of(pass_with(scenario, chunk, "B")) == ()


@given(layer_scenarios())
def test_bytes_of_the_embedding(scenario: Scenario) -> None:
    """Each rank looks up and masks all rows. Positions and dropout process only its own rows."""
    shape = shape_of(scenario)
    whole, local = (2 * rows * shape.hidden for rows in (shape.tokens, shape.local_tokens))
    assert moved(passes(scenario, embedding=True)[0]) == {
        "embedding lookup": (whole, whole),
        "embedding mask": (0, whole),
        "position embedding": (2 * local, local),
        "embedding dropout": (local, local + local // 2),
    }


@given(layer_scenarios())
def test_bytes_of_the_loss(scenario: Scenario) -> None:
    """Kernels of `vocab_parallel_cross_entropy` process sb · v/t logits, converted to fp32."""
    shape = shape_of(scenario)
    logits = shape.tokens * shape.vocab // shape.tensor
    fp32, half = 4 * logits, 2 * logits
    forward, backward = map(moved, passes(scenario, head=True))
    del forward["final layer norm"]
    assert forward == {
        "logits to fp32": (half, fp32),
        "logits maximum": (fp32, 0),
        "logits minus maximum": (fp32, fp32),
        "exponentials": (fp32, fp32),
        "sum of exponentials": (fp32, 0),
        "softmax of logits": (fp32, fp32),
    }
    assert backward["cross entropy gradient"] == (fp32, fp32)
    assert backward["logits from fp32"] == (fp32, half)


# The link between the last stage and the first, which the interleaved schedule uses.


def ring(tensor: int, pipeline: int, **sections: object) -> Scenario:
    return scenario_with(
        {"num_layers": 2 * pipeline, "hidden_size": 1024, "num_attention_heads": 16}
        | {"seq_length": 512},
        parallelism={"tensor": tensor, "pipeline": pipeline, "interleave": 2},
        batch={"micro": 1, "global": pipeline},
        **sections,
    )


@pytest.mark.parametrize(
    ("tensor", "pipeline", "inside", "wraps_inside"),
    [
        (2, 4, [True, True, True], True),  # all four stages on one node of eight GPUs
        (4, 4, [True, False, True], False),  # two stages per node
        (8, 4, [False, False, False], False),  # one stage per node
    ],
)
def test_the_wrap_around_is_inside_a_node_only_if_the_pipeline_is(
    tensor: int, pipeline: int, inside: list[bool], wraps_inside: bool
) -> None:
    plan = plan_of(ring(tensor, pipeline))
    tasks = tasks_of(structure_of(plan))
    parts = {
        tasks.graph.stream(task): part
        for task, number in enumerate(tasks.part_of)
        if isinstance(part := tasks.parts[number], TransferPart)
    }
    for stage, expected in enumerate(inside):
        for stream in (f"link {stage}->{stage + 1}", f"link {stage + 1}->{stage}"):
            assert parts[stream].levels_crossed == (not expected)
    last = pipeline - 1
    for stream in (f"wrap {last}->0", f"wrap 0->{last}"):
        assert parts[stream].levels_crossed == (not wraps_inside)
