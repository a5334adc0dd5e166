"""Bytes of batch, embedding, loss and links, for which the paper has no formula, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.parts import TransferPart, structure_of
from simtrain.scenario import Scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.model_ends import GetBatch
from simtrain.workload.work import Collective, Elementwise
from tests.helpers.toys import (
    chunk_with,
    layer_scenarios,
    ops_of,
    pass_with,
    plan_of,
    scenario_with,
    shape_of,
)


def read_and_written(scenario: Scenario, chunk: Chunk, kind: str) -> dict[str, tuple[int, int]]:
    ops = ops_of(pass_with(scenario, chunk, kind))  # type: ignore[arg-type]
    return {
        op.name: (op.work.read_bytes, op.work.write_bytes)
        for op in ops
        if isinstance(op.work, Elementwise)
    }


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
    assert read_and_written(scenario, chunk, "F") == expected
    broadcasts = [
        op.work.array_bytes
        for op in ops_of(pass_with(scenario, chunk, "F"))
        if isinstance(op.work, Collective)
    ]
    assert broadcasts == ([8, text] if shape.tensor > 1 else [])
    assert ops_of(pass_with(scenario, chunk, "B")) == ()


@given(layer_scenarios())
def test_bytes_of_the_embedding(scenario: Scenario) -> None:
    """Each rank looks up and masks all rows. Positions and dropout process only its own rows."""
    shape = shape_of(scenario)
    whole, local = (2 * rows * shape.hidden for rows in (shape.tokens, shape.local_tokens))
    found = read_and_written(scenario, chunk_with(scenario, embedding=True), "F")
    assert found == {
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
    chunk = chunk_with(scenario, head=True)
    forward = read_and_written(scenario, chunk, "F")
    del forward["final layer norm"]
    assert forward == {
        "logits to fp32": (half, fp32),
        "logits maximum": (fp32, 0),
        "logits minus maximum": (fp32, fp32),
        "exponentials": (fp32, fp32),
        "sum of exponentials": (fp32, 0),
        "softmax of logits": (fp32, fp32),
    }
    backward = read_and_written(scenario, chunk, "B")
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
