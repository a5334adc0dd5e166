"""Gathers of whole chunks in pipelines of fully_shard: bytes, memory and time."""

from typing import Any

import pytest

from simtrain.durations.collectives import wire_bytes
from simtrain.iteration.programs.iteration_tasks import IterationTasks
from simtrain.iteration.programs.parts import BucketPart
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate, simulate_memory
from simtrain.workload.work import Collective
from tests.helpers.toys import layer_parameters, plan_of, small
from tests.iteration.programs.test_sharded_pipelines import TITAN

P, SHARDS = 2, 4


def sharded(schedule: str, chunks: int, most: int | None, **more: Any) -> Scenario:
    """Return eight layers on two stages of some chunks, which four ranks shard."""
    memory = {"zero_stage": 3, "reduce_every_microbatch": False, "gathered_chunks": most}
    sections: dict[str, Any] = {
        "model": {"tied_embeddings": False},
        "memory": memory,
        "overlap": {"data_parallel": True} | ({"pipeline": True} if chunks > 1 else {}),
        "software": TITAN,
        "schedule": schedule,
    }
    split = {"tensor": 1, "pipeline": P, "data": SHARDS, "interleave": chunks}
    return small(split, **(sections | more))


def sent_bytes(result: Result, name: str) -> list[float]:
    """Return the bytes that a rank of each stage sends in collectives with a name."""
    tasks: IterationTasks = result.iteration.tasks
    sent = [0.0] * P
    for task, number in enumerate(tasks.part_of.tolist()):
        part = tasks.parts[number]
        if isinstance(part, BucketPart):
            works = (op.work for op in result.seconds.ops_of(part) if op.name == name)
            stage = int(tasks.graph.stream_of[task]) % P
            sent[stage] += sum(wire_bytes(work) for work in works if isinstance(work, Collective))
    return sent


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_bytes_of_a_breadth_first_iteration(most: int) -> None:
    """2Ψ (s - 1)/s per gather, with 2v - k gathers of Ψ/v; gΨ (s - 1)/s reduce-scattered once.

    The first k chunks are gathered once: those that stay from forward to backward passes, the last
    ones, and k = 1 keeps the last.
    """
    chunks = 4
    result = simulate(sharded("looped_bfs", chunks, most))
    plan = result.plan
    numbers = plan.model_chunks.numbers
    whole = [chunk.total for chunk in plan.chunk_parameters]
    for stage in range(P):
        mine = [whole[numbers[stage + P * chunk]] for chunk in range(chunks)]
        gathered = sum(mine) + sum(mine[: chunks - most])
        expected = 2 * gathered * (SHARDS - 1) / SHARDS
        assert sent_bytes(result, "parameter gather")[stage] == pytest.approx(expected, rel=1e-5)
    held = [one.total for one in plan.stage_parameters]
    assert sent_bytes(result, "gradient reduction") == pytest.approx(
        [4 * one * (SHARDS - 1) / SHARDS for one in held], rel=1e-5
    )


def test_bytes_do_not_depend_on_the_number_of_microbatches() -> None:
    """Breadth-first; depth-first gathers again for each further group of p microbatches."""
    sent = {
        (schedule, batch): sent_bytes(
            simulate(sharded(schedule, 4, 1, batch={"micro": 1, "global": batch})),
            "parameter gather",
        )[0]
        for schedule in ("looped_bfs", "interleaved")
        for batch in (8, 32)
    }
    assert sent["looped_bfs", 8] == sent["looped_bfs", 32] == sent["interleaved", 8]
    assert sent["interleaved", 32] > 3 * sent["interleaved", 8]


@pytest.mark.parametrize("most", [1, 2, 4])
def test_memory_of_a_breadth_first_iteration(most: int) -> None:
    """Shards of 4Ψ, 4Ψ and 8Ψ bytes over s; 2Ψ of k chunks; gradients of two chunks, 4Ψ/v each.

    A gather ends with a buffer of its last layer, and a reduction has one of its largest unit. The
    largest chunk of a stage has its root.
    """
    scenario = sharded("looped_bfs", 4, most)
    plan, layer = plan_of(scenario), layer_parameters(scenario)
    for stage, memory in zip(plan.stage_parameters, simulate_memory(scenario).stages, strict=True):
        shard = -(-stage.total // SHARDS)
        states = memory.states
        assert states.parameters_bytes == states.gradients_bytes == 4 * shard
        assert states.optimizer_bytes == 8 * shard
        gathered = stage.root + (most + 1) * layer
        assert memory.buffers_bytes["gathered parameters"] == 2 * gathered
        bucket = max(layer, stage.root)
        assert memory.buffers_bytes["gradient bucket"] == 4 * (stage.root + 2 * layer + bucket)
