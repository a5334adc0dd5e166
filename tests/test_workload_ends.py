"""What is no layer: embedding, head, batch, parameters and the optimizer step, by closed forms."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import layer_scenarios, paper_scenario, scenario_with, shape_of

from simtrain.scenario import Scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import (
    Collective,
    CollectiveKind,
    Elementwise,
    Group,
    Op,
    saved_bytes,
    total_flops,
)
from simtrain.workload.optimizer import step_ops
from simtrain.workload.parameters import StageParameters, layer_parameters, stage_parameters

ENDS = Chunk(0, has_embedding=True, has_head=True)
FP32 = 4


def run(chunk: Chunk, scenario: Scenario) -> tuple[IssueOrder, IssueOrder]:
    shape, recompute = shape_of(scenario), scenario.recompute
    return (
        chunk.forward(shape, recompute, hide=True),
        chunk.backward(shape, recompute, hide=True),
    )


def collectives(ops: tuple[Op, ...]) -> list[tuple[str, str, int]]:
    return [(op.name, op.kind, op.array_bytes) for op in ops if isinstance(op, Collective)]


@given(layer_scenarios())
def test_what_the_ends_keep_and_compute(scenario: Scenario) -> None:
    """Section 4.3 (with p = 1): a mask of sbh/t, and 4sbh/t (1 + v/h); 6sbhv/t FLOPs."""
    shape = shape_of(scenario)
    s, b, h, v, t = shape.seq_length, shape.microbatch, shape.hidden, shape.vocab, shape.tensor
    forward, backward = run(ENDS, scenario)
    split = t if shape.sequence_parallel else 1
    kept = Fraction(s * b * h, split) + Fraction(4 * s * b * h, split) + Fraction(4 * s * b * v, t)
    assert saved_bytes(forward.ops()) == kept
    assert total_flops(forward.ops() + backward.ops()) == Fraction(6 * s * b * h * v, t)


@pytest.mark.parametrize("sequence", [False, True])
def test_collectives_of_the_embedding(sequence: bool) -> None:
    """Each rank looks up its part of the vocabulary and the parts are summed."""
    forward, backward = run(Chunk(0, has_embedding=True), paper_scenario("22B", sequence=sequence))
    sbh2 = 2 * 2048 * 4 * 6144
    kind = CollectiveKind.REDUCE_SCATTER if sequence else CollectiveKind.ALL_REDUCE
    assert collectives(forward.ops()) == [("embedding sum", kind, sbh2)]
    gathered = [("embedding sum", CollectiveKind.ALL_GATHER, sbh2)] if sequence else []
    assert collectives(backward.ops()) == gathered


def test_the_table_gradient_is_added_to_the_buffer() -> None:
    """Zero and scatter in 16 bits, then one pass that reads both and writes the fp32 buffer."""
    _, backward = run(Chunk(0, has_embedding=True), paper_scenario("22B"))
    table = 51200 // 8 * 6144
    moved = {op.name: op.moved_bytes for op in backward.ops() if isinstance(op, Elementwise)}
    assert moved["embedding table zero"] == 2 * table
    assert moved["embedding accumulate"] == (2 + 4 + 4) * table
    assert moved["embedding scatter"] == 3 * 2 * 2048 * 4 * 6144


def test_cross_entropy_reduces_three_fp32_numbers_a_token() -> None:
    forward, _ = run(Chunk(0, has_head=True), paper_scenario("22B"))
    tokens = 2048 * 4 * FP32
    assert collectives(forward.ops()) == [
        ("cross entropy maximum", CollectiveKind.ALL_REDUCE, tokens),
        ("cross entropy target", CollectiveKind.ALL_REDUCE, tokens),
        ("cross entropy sum", CollectiveKind.ALL_REDUCE, tokens),
    ]


def test_each_reduction_of_the_cross_entropy_waits_for_its_kernel_and_is_waited_for() -> None:
    forward, _ = run(Chunk(0, has_head=True), paper_scenario("22B"))
    nodes = forward.nodes
    for position, node in enumerate(nodes):
        if isinstance(node.op, Collective):
            assert node.after == (position - 1,)
            assert nodes[position + 1].after == (position,)


@pytest.mark.parametrize("sequence", [False, True])
def test_the_heads_input_gradient_is_reduced_behind_its_weight_gradient(sequence: bool) -> None:
    _, backward = run(Chunk(0, has_head=True), paper_scenario("22B", sequence=sequence))
    names = [op.name for op in backward.ops()]
    reduced = "output layer g" if sequence else "output layer f"
    at = names.index(reduced)
    assert names[at - 1] == "logits input gradient"
    assert names[at + 1] == "logits weight gradient"
    assert at not in backward.nodes[at + 1].after
    assert at in backward.nodes[at + 2].after


@pytest.mark.parametrize("tensor", [1, 8])
def test_the_batch_is_broadcast_over_tensor_parallel_ranks(tensor: int) -> None:
    """(s + 1) 64-bit tokens a sequence, and one causal mask of s² for all."""
    scenario = scenario_with(
        {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 8, "seq_length": 32},
        parallelism={"tensor": tensor},
        batch={"micro": 3, "global": 3},
    )
    forward, backward = run(Chunk(0, reads_batch=True), scenario)
    sizes = [array_bytes for _, _, array_bytes in collectives(forward.ops())]
    assert sizes == ([8, 3 * 33 * 8] if tensor > 1 else [])
    moved = {op.name: op.moved_bytes for op in forward.ops() if isinstance(op, Elementwise)}
    assert moved["mask ones"] == 32 * 32 * FP32
    assert moved["mask below one half"] == 32 * 32 * (FP32 + 1)
    assert backward.ops() == ()


def stages(scenario: Scenario, *, tied: bool = True) -> list[StageParameters]:
    """Parameters of one rank of each stage, a chunk a stage."""
    num_stages = scenario.parallelism.pipeline
    layers = scenario.model.num_layers // num_stages
    chunks = [
        Chunk(layers, has_embedding=stage == 0, has_head=stage == num_stages - 1)
        for stage in range(num_stages)
    ]
    return [stage_parameters(shape_of(scenario), (chunk,), tied=tied) for chunk in chunks]


@given(layer_scenarios(max_tensor=1), st.booleans())
def test_parameters_of_a_whole_model(scenario: Scenario, tied: bool) -> None:
    """12h² + 13h a layer, (v + s)h of embeddings and 2h of the last layer norm."""
    shape = shape_of(scenario)
    h, v, s = shape.hidden, shape.vocab, shape.seq_length
    assert layer_parameters(shape) == 12 * h * h + 13 * h
    (whole,) = stages(scenario, tied=tied)
    tables = 1 if tied else 2
    assert whole.total == 12 * h * h + 13 * h + (tables * v + s) * h + 2 * h


@given(layer_scenarios())
def test_tensor_parallelism_divides_matrices_and_repeats_layer_norms(scenario: Scenario) -> None:
    shape = shape_of(scenario)
    h, t = shape.hidden, shape.tensor
    assert layer_parameters(shape) == Fraction(12 * h * h + 7 * h, t) + 6 * h


@pytest.mark.parametrize(
    ("model", "billions"), [("22B", 22), ("175B", 175), ("530B", 530), ("1T", 1008)]
)
def test_models_of_table_3(model: str, billions: int) -> None:
    held = sum(stage.total for stage in stages(paper_scenario(model))) * 8
    assert held == pytest.approx(billions * 1e9, rel=0.02)


def gpt3(**sections: object) -> Scenario:
    base = paper_scenario("175B").model_dump(by_alias=True, exclude={"name", "description"})
    return scenario_with(**(base | sections))


def moved(ops: tuple[Op, ...]) -> dict[str, int]:
    return {op.name: op.moved_bytes for op in ops if isinstance(op, Elementwise)}


@pytest.mark.parametrize(
    ("precision", "per_parameter"),
    [
        # 16-bit weights, fp32 gradients: Adam reads 4 and writes 3 fp32 numbers.
        (("bf16", "fp32"), {"average": 8, "norm": 4, "update": 8 + 28 + 6 + 4}),
        # Losses are scaled: gradients are unscaled and checked in place.
        (("fp16", "fp32"), {"average": 8, "norm": 4 + 8, "update": 8 + 28 + 6 + 4}),
        # 16-bit gradients are first copied to fp32.
        (("bf16", "bf16"), {"average": 4, "norm": 6 + 4, "update": 8 + 28 + 6 + 2}),
    ],
)
def test_bytes_of_the_optimizer_step(
    precision: tuple[str, str], per_parameter: dict[str, int]
) -> None:
    compute, gradients = precision
    scenario = gpt3(precision={"compute": compute, "gradients": gradients})
    parameters = StageParameters(layers=700, embedding=200, other=100, sequence_parallel=60)
    ops = step_ops(scenario, parameters)
    assert sum(moved(ops.average).values()) == per_parameter["average"] * 1000
    assert sum(moved(ops.gradient_norm).values()) == per_parameter["norm"] * 1000
    assert sum(moved(ops.update).values()) == per_parameter["update"] * 1000


def test_collectives_of_the_optimizer_step() -> None:
    grid = {"tensor": 8, "pipeline": 8, "interleave": 3, "data": 2, "sequence_parallel": True}
    scenario = gpt3(parallelism=grid, batch={"micro": 1, "global": 128})
    parameters = StageParameters(layers=700, embedding=200, other=100, sequence_parallel=60)
    ops = step_ops(scenario, parameters)

    def one(part: tuple[Op, ...]) -> tuple[int, int, Group]:
        (op,) = [op for op in part if isinstance(op, Collective)]
        assert op.kind is CollectiveKind.ALL_REDUCE
        return op.array_bytes, op.group_size, op.group

    assert one(ops.data_reduction) == (4000, 2, Group.DATA)
    assert one(ops.sequence_parallel_reduction) == (240, 8, Group.TENSOR)
    assert one(ops.embedding_reduction) == (800, 2, Group.EMBEDDING)
    assert one(ops.gradient_norm) == (4, 64, Group.MODEL)


def test_what_has_no_peers_reduces_nothing() -> None:
    """One replica, no sequence parallelism, no embedding on the stage."""
    parameters = StageParameters(layers=700, embedding=0, other=0, sequence_parallel=60)
    ops = step_ops(paper_scenario("175B"), parameters)
    reductions = (ops.data_reduction, ops.sequence_parallel_reduction, ops.embedding_reduction)
    assert reductions == ((), (), ())


def test_sequence_parallel_parameters_are_layer_norms_and_row_parallel_biases() -> None:
    """4h of two layer norms and 2h of two biases a layer, 2h of the final layer norm."""
    first, *_, last = stages(paper_scenario("175B", sequence=True))
    assert first.sequence_parallel == 12 * 6 * 12288
    assert last.sequence_parallel == 12 * 6 * 12288 + 2 * 12288
