"""Recorded pipelines in the engine: closed forms worked out by hand, and laws of drawn ones."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.pipeline_program import PipelineProgram
from simtrain.base.program import expanded
from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.iteration.report.remarks import remarks_on
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate, simulate_memory
from simtrain.workload.work import Elementwise, Gemm, KernelFamily
from tests.helpers.recorded_pipelines import (
    WITHOUT_COMMUNICATION,
    chunk,
    linear_pipeline,
    pipelines,
    scenario_of,
)
from tests.helpers.recorded_programs import HIDDEN, SIZE, TOKENS, WEIGHT, X, run

MODEL = DurationModel(load_profile("h100_sxm"))
FORWARD_S = MODEL.seconds(Gemm(TOKENS, HIDDEN, HIDDEN, layout="TN"))
BACKWARD_S = MODEL.seconds(Gemm(HIDDEN, HIDDEN, TOKENS, layout="NT")) + MODEL.seconds(
    Gemm(TOKENS, HIDDEN, HIDDEN, layout="NN")
)
ADAM_S = MODEL.seconds(Elementwise(4 * WEIGHT, 3 * WEIGHT, KernelFamily.STREAM))


def without_communication(program: PipelineProgram, folder: Path, **changes: Any) -> Result:
    return simulate(scenario_of(program, folder, hardware=WITHOUT_COMMUNICATION, **changes))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 4), (4, 16), (8, 24)])
def test_the_bubble_is_that_of_equal_stages(
    stages: int, microbatches: int, schedule: str, tmp_path: Path
) -> None:
    """(p - 1)/m of the time of the passes (Narayanan et al. 2021, Section 2.2)."""
    program = linear_pipeline(stages, sent=(), microbatches=microbatches)
    result = without_communication(program, tmp_path, schedule=schedule)
    passes_s = microbatches * (FORWARD_S + BACKWARD_S)
    bubble_s = (stages - 1) * (FORWARD_S + BACKWARD_S)
    for stage in result.stages:
        assert stage.bubble_s == pytest.approx(bubble_s, rel=1e-12)
    assert bubble_s / passes_s == pytest.approx((stages - 1) / microbatches, rel=1e-12)
    expected = passes_s + bubble_s + ADAM_S
    assert result.iteration_time_s == pytest.approx(expected, rel=1e-12)


def test_chunks_divide_the_bubble(tmp_path: Path) -> None:
    """(p - 1)/(v m) with v chunks on each of p stages, of v times as many layers."""
    program = linear_pipeline(4, 2, sent=(), microbatches=8)
    result = without_communication(program, tmp_path, overlap={"pipeline": True})
    bubble_s = 3 * (FORWARD_S + BACKWARD_S)
    for stage in result.stages:
        assert stage.bubble_s == pytest.approx(bubble_s, rel=1e-12)


@pytest.mark.parametrize(("schedule", "waiting"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [8] * 4)])
def test_a_stage_holds_its_microbatches_in_flight(
    schedule: str, waiting: list[int], tmp_path: Path
) -> None:
    """States, a saved input of each, the gradients, and what one product makes."""
    memory = simulate_memory(scenario_of(linear_pipeline(4), tmp_path, schedule=schedule))
    for stage, number in zip(memory.stages, waiting, strict=True):
        assert stage.states.parameters_bytes == WEIGHT
        assert stage.states.optimizer_bytes == 2 * WEIGHT
        assert stage.states.gradients_bytes == WEIGHT
        assert stage.activations_bytes == (number + 1) * SIZE
        assert stage.peak_name == f"{stage.stage}B0"


def test_a_stage_holds_the_microbatches_of_all_its_chunks(tmp_path: Path) -> None:
    """The interleaved schedule has 2(p - 1) + (v - 1)p + 1 on its first stage (Section 2.3)."""
    scenario = scenario_of(linear_pipeline(4, 2), tmp_path, overlap={"pipeline": True})
    stage = simulate_memory(scenario).stages[0]
    assert stage.states.parameters_bytes == 2 * WEIGHT
    # The backward pass at the peak is the first of its chunk or not: a gradient more or less.
    most = stage.activations_bytes + stage.states.gradients_bytes
    assert most == (2 * 3 + 4 + 1 + 1) * SIZE + 2 * WEIGHT


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_bytes_sent_are_bytes_received(schedule: str, tmp_path: Path) -> None:
    """Each boundary has an activation and a gradient of every microbatch, of different sizes."""
    sent = (X, "i64[128]")  # integers have no gradients
    program = linear_pipeline(4, sent=sent, microbatches=8)
    chunks = [
        each.model_copy(update={"returns": [X] * bool(each.receives)}) for each in program.chunks
    ]
    program = PipelineProgram.model_validate(
        program.model_dump() | {"chunks": [each.model_dump() for each in chunks]}
    )
    result = simulate(scenario_of(program, tmp_path, schedule=schedule))
    rows = [row for stage in range(4) for row in result.operators(stage).rows]
    total = {
        name: sum(row.num_bytes for row in rows if row.name == name)
        for name in (
            "activations sent",
            "activations received",
            "gradients sent",
            "gradients received",
        )
    }
    assert total["activations sent"] == total["activations received"] == 3 * 8 * (SIZE + 8 * 128)
    assert total["gradients sent"] == total["gradients received"] == 3 * 8 * SIZE


def test_flops_are_those_of_all_passes_and_ranks(tmp_path: Path) -> None:
    program = linear_pipeline(4, gpus=8, microbatches=6)
    result = simulate(scenario_of(program, tmp_path))
    assert result.hardware_flops == 2 * 4 * 6 * 3 * 2 * TOKENS * HIDDEN**2
    assert result.num_parameters == 4 * HIDDEN**2
    assert result.tokens_per_s == pytest.approx(6 * 2 * TOKENS / result.iteration_time_s)
    assert result.num_simulated_ranks == 4


def test_a_first_pass_gathers_and_gradients_are_reduced_once(tmp_path: Path) -> None:
    """Turns decide the ops: with equal ones, twice as many microbatches take twice the passes."""
    collective = {"reads": ["bf16[65536]"], "writes": ["bf16[65536]"], "group": 0}
    gather = run({"op": "c10d._allgather_base_"} | collective)
    reduce = run({"op": "c10d._reduce_scatter_base_"} | collective)
    changes = {
        "groups": [[0, 1]],
        "first_forward": [gather, *chunk()["forward"]],
        "reduction": [reduce],
    }
    numbers = {}
    for microbatches in (4, 8):
        program = linear_pipeline(2, gpus=4, microbatches=microbatches, chunk=changes)
        result = simulate(scenario_of(program, tmp_path))
        rows = result.operators(1).rows
        numbers[microbatches] = {
            name: sum(row.count for row in rows if name in row.name)
            for name in ("allgather", "reduce_scatter", "mm")
        }
    assert numbers[4] == {"allgather": 1, "reduce_scatter": 1, "mm": 12}
    assert numbers[8] == {"allgather": 1, "reduce_scatter": 1, "mm": 24}


def test_groups_have_the_ranks_of_their_stage(tmp_path: Path) -> None:
    """Six ranks of a stage, on nodes of eight: only those of the first stage share a node."""
    collective = {"op": "c10d.allreduce_", "reads": ["bf16[65536]"], "group": 0}
    changes = {"groups": [[*range(6)]], "forward": [run(collective), *chunk()["forward"]]}
    program = linear_pipeline(2, gpus=12, chunk=changes)
    result = simulate(scenario_of(program, tmp_path))
    first, second = (
        next(row for row in result.operators(stage).rows if "allreduce" in row.name)
        for stage in (0, 1)
    )
    assert second.alone_s > first.alone_s


def test_ops_without_a_rule_are_named(tmp_path: Path) -> None:
    own = {"op": "mine.scan", "reads": [X], "writes": [X]}
    program = linear_pipeline(2, chunk={"forward": [run(own)]})
    texts = [*map(str, remarks_on(simulate(scenario_of(program, tmp_path))))]
    assert any(text.startswith("No rule knows mine.scan") for text in texts)


def drawn_scenario(program: PipelineProgram, folder: Path, **changes: Any) -> Scenario:
    """Return a scenario; interleaved schedules of two stages run with asynchronous messages."""
    overlap = {"pipeline": True} if program.interleave > 1 else {}
    return scenario_of(program, folder, overlap=overlap, **changes)


@given(program=pipelines())
def test_all_engines_agree_to_the_last_bit(
    program: PipelineProgram, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scenario = drawn_scenario(program, tmp_path_factory.mktemp("drawn"))
    times = {simulate(scenario, engine=engine).iteration_time_s for engine in ("simpy", "compiled")}
    assert len(times) == 1


@given(program=pipelines())
def test_the_breakdown_and_the_operators_add_up(
    program: PipelineProgram, tmp_path_factory: pytest.TempPathFactory
) -> None:
    result = simulate(drawn_scenario(program, tmp_path_factory.mktemp("drawn")))
    assert math.fsum(result.breakdown_s.values()) == pytest.approx(result.iteration_time_s)
    for stage in {0, program.pipeline - 1}:
        operators = result.operators(stage)
        exposed_s = math.fsum(row.exposed_s for row in operators.rows)
        idle_s = operators.breakdown.launch_s + operators.breakdown.bubble_s
        assert exposed_s + idle_s == pytest.approx(result.iteration_time_s)


@given(program=pipelines(), number=st.integers(1, 3))
def test_the_peak_is_the_most_that_a_stage_holds(
    program: PipelineProgram, number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A loop over the ops of all passes of a stage, in their order, finds the same peak."""
    batch = {"global": number * program.pipeline * program.data}
    scenario = drawn_scenario(program, tmp_path_factory.mktemp("drawn"), batch=batch)
    memory = simulate_memory(scenario)
    for stage, actions in enumerate(scenario.order.actions.cells):
        numbers = sorted({action.virtual_stage for action in actions})
        before: dict[int, str] = {}
        seen: set[tuple[int, str]] = set()
        runs = []
        for action in actions:
            of_stage = program.chunks[program.chunk_numbers[action.virtual_stage]]
            key, latest = (action.virtual_stage, action.kind), before.get(action.virtual_stage)
            name = {"F": "forward", "B": "backward"}[action.kind]
            variant = f"first_{name}" if key not in seen else name
            if key in seen and latest == "B":
                variant = f"{name}_after_backward"
            runs.append(getattr(of_stage, variant) or getattr(of_stage, name))
            seen.add(key)
            before[action.virtual_stage] = action.kind
        of_rank = [program.chunks[program.chunk_numbers[each]] for each in numbers]
        runs += [each.reduction for each in of_rank] + [each.optimizer for each in of_rank]
        total, most = 0, []
        for op in (op for of_pass in runs for op in expanded(of_pass)):
            total += op.makes_bytes
            most.append(total)
            total -= op.frees_bytes
        peak = memory.stages[stage]
        assert peak.activations_bytes + peak.states.gradients_bytes == max(most)
