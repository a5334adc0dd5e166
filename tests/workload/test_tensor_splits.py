"""Splits of the layers' matrices: bytes, FLOPs and memory of the closed forms of their papers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.mesh import Mesh
from simtrain.durations.collectives import total_wire_bytes
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate
from simtrain.workload.chunk import layer_parameters
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.work import Collective
from tests.helpers.toys import (
    a100,
    chunk_with,
    layer_ops,
    plan_of,
    saved_bytes,
    scenario_with,
)


def split_scenario(name: str, tensor: int, **sections: object) -> Scenario:
    """Return one layer of GPT on a grid of ranks, whose sizes they divide."""
    model = {"num_layers": 1, "hidden_size": 1536, "num_attention_heads": 24, "seq_length": 256}
    return scenario_with(
        model | {"vocab_size": 51840},
        parallelism={"tensor": tensor, "tensor_split": name},
        **{"batch": {"micro": 36, "global": 36}} | sections,
    )


def sums_of_norms(ops: tuple[Op, ...]) -> list[Op]:
    """Return the all-reduces of norms, which the closed forms of layers leave out."""
    return [op for op in ops if "norm" in op.name and isinstance(op.work, Collective)]


@given(st.integers(2, 12), st.integers(1, 5), st.integers(1, 40), st.integers(1, 60))
def test_a_hidden_split_moves_and_saves_what_sequence_parallelism_does(
    t: int, heads: int, channels: int, length: int
) -> None:
    """Table 2 with sequence parallelism, besides the sums of two norms.

    Each norm adds two fp32 numbers per token in each direction: 8sb bytes, all-reduced four times.
    """
    model = {
        "num_layers": 1,
        "hidden_size": t * heads * channels,
        "num_attention_heads": t * heads,
        "seq_length": t * length,
        "vocab_size": t,
    }
    split = scenario_with(model, parallelism={"tensor": t, "tensor_split": "hidden"})
    sequence = scenario_with(model, parallelism={"tensor": t, "sequence_parallel": True})
    (forward, backward), (other, other_back) = layer_ops(split), layer_ops(sequence)
    ops, others = forward + backward, other + other_back
    sums = sums_of_norms(ops)
    norms_bytes = 4 * 2 * Fraction(t - 1, t) * 8 * t * length
    assert total_wire_bytes(sums) == norms_bytes
    assert total_wire_bytes(ops) - norms_bytes == total_wire_bytes(others)
    without = total_wire_bytes(ops, include_extra=False) - norms_bytes
    assert without == total_wire_bytes(others, include_extra=False)
    assert total_flops(ops) == total_flops(others)
    assert saved_bytes(forward) == saved_bytes(other)


@pytest.mark.parametrize("name", ["hidden"])
def test_ranks_hold_equal_parts_of_a_layer(name: str) -> None:
    """The ranks together hold each parameter of a layer once."""
    whole = split_scenario("1d", 1)
    split = split_scenario(name, 4)
    number, of_whole = (
        layer_parameters(chunk_with(each, 1), plan_of(each).microbatch)[0].total
        for each in (split, whole)
    )
    assert 4 * number == of_whole


@pytest.mark.parametrize("name", ["hidden"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_split_keeps_the_flops_of_the_model(name: str, recompute: str, pipeline: int) -> None:
    split = {"tensor": 4, "tensor_split": name, "pipeline": pipeline}
    whole = {"tensor": 4, "pipeline": pipeline}
    model = {"num_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 64}
    batch = {"micro": 4, "global": 8}
    runs = [
        simulate(scenario_with(model, parallelism=way, batch=batch, recompute=recompute), a100())
        for way in (split, whole)
    ]
    assert runs[0].model_flops == runs[1].model_flops
    assert runs[0].hardware_flops == runs[1].hardware_flops


@pytest.mark.parametrize("name", ["hidden"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_both_engines_evaluate_splits_alike(name: str, overlaps: bool) -> None:
    scenario = split_scenario(
        name, 4, overlap={"tensor_parallel": overlaps}, schedule="1f1b", recompute="selective"
    ).replace({"parallelism.pipeline": 2, "model.num_layers": 2, "batch.global": 72})
    one, other = (
        Evaluator(allow_oom=True, breakdowns=True, engine=engine).evaluate(scenario)
        for engine in ("auto", "simpy")
    )
    assert (one.run, one.peak_bytes) == (other.run, other.peak_bytes)


def test_overlap_hides_collectives_of_a_split() -> None:
    times = [
        simulate(
            split_scenario("hidden", 4, overlap={"tensor_parallel": on}), a100()
        ).iteration_time_s
        for on in (False, True)
    ]
    assert times[1] < times[0]


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9)
)
def test_a_grid_of_two_levels_has_the_groups_of_a_split_axis(
    inner: int, outer: int, dp: int, pp: int, gpus: int
) -> None:
    mesh = Mesh(tp=inner * outer, dp=dp, pp=pp, gpus_per_node=gpus)
    groups = tuple(mesh.grid_group("tp", (inner, outer), (level,)) for level in (0, 1))
    assert groups == mesh.split_group("tp", inner)
    assert mesh.grid_group("tp", (inner, outer), (0, 1)) == mesh.group("tp")
