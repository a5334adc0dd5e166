"""Laws of every iteration, on scenarios of all settings together and on recorded programs."""

import functools
import io
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from benchmarks.random_programs import times_by_engine
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.programs.pass_tasks import PassMachine, simulate_pass
from simtrain.iteration.programs.seconds import least_seconds, pass_flops
from simtrain.iteration.report.result import Result
from simtrain.render.terminal import terminal_page
from simtrain.render.timeline_lanes import OWN, lanes_of
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.simulation import simulate
from simtrain.studies.variation import draw
from simtrain.views.memory import memory_view
from simtrain.views.result import result_view
from simtrain.workload.ops import total_flops, total_model_flops
from simtrain.workload.passes import Pass, record_pass
from simtrain.workload.work import Collective, HostWork
from tests.helpers.floors import (
    assert_mfu_is_hfu_at_most_unless_masked,
    assert_no_op_is_below_its_floor,
)
from tests.helpers.merged_cases import merged_scenarios
from tests.helpers.random_recordings import recorded_scenarios
from tests.helpers.span_sums import assert_spans_add_up

EVALUATORS = [Evaluator(allow_oom=True, engine=engine) for engine in ("auto", "simpy")]
STILL = {"kernels": 0, "collectives": 0, "gpu_spread": 0, "pauses": {"per_gpu_hour": 0}}
DRAWN, MORE, RECORDED = 30, 180, 4


@functools.cache
def drawn(seed: int) -> list[Scenario]:
    return [*merged_scenarios(seed)]


def simulated(number: int) -> Result:
    """Simulate a drawn scenario; the first ones together have every field."""
    seed = 0
    while number >= len(drawn(seed)):
        number, seed = number - len(drawn(seed)), seed + 1
    return simulate(drawn(seed)[number])


@pytest.fixture(
    scope="module",
    params=[
        *range(DRAWN),
        *(f"recorded {number}" for number in range(RECORDED)),
        *(pytest.param(number, marks=pytest.mark.ci) for number in range(DRAWN, MORE)),
    ],
)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    if isinstance(request.param, int):
        return simulated(request.param)
    seed, folder = int(request.param.split()[1]), tmp_path_factory.mktemp("recordings")
    (values,) = recorded_scenarios(1, seed, folder)
    return simulate(Scenario.model_validate(values))


def passes_of(result: Result) -> list[Pass]:
    return [each for each, _ in result.plan.different_passes()]


def test_all_engines_give_identical_times(result: Result) -> None:
    times = times_by_engine(result.timeline.program)
    for found in times.values():
        assert all(map(np.array_equal, found, times["simpy"]))
    assert 0 < result.iteration_time_s == times["simpy"][1].max()


def test_all_engines_give_identical_passes(result: Result) -> None:
    machine = result.seconds.machine.pass_machine()
    for each in passes_of(result):
        record = record_pass(each)
        expected = simulate_pass(record, machine, "simpy")
        assert simulate_pass(record, machine, "compiled") == expected
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("simtrain.engine.run.runs_compiled", lambda num_tasks=0: False)
            assert simulate_pass(record, machine) == expected


def test_both_engines_evaluate_what_is_simulated(result: Result) -> None:
    for evaluator in EVALUATORS:
        evaluation = evaluator.evaluate(result.scenario)
        run = evaluation.run
        assert run is not None and run.breakdown == result.breakdown
        assert run.iteration_time_s == result.iteration_time_s
        assert (run.mfu, run.hfu, run.tokens_per_s) == (result.mfu, result.hfu, result.tokens_per_s)
        assert evaluation.peak_bytes == result.memory.fullest.peak_bytes
        assert evaluation.fits == result.memory.fits


def test_bounds_are_below_the_time(result: Result) -> None:
    plan = result.iteration.seconds.plan
    bounds = Bounds(result.seconds.machine)
    assert 0 < bounds.work_s(plan) <= bounds.busy_s(plan) <= result.iteration_time_s
    assert 0 < least_seconds(result.plan, result.profile) <= result.iteration_time_s


def test_parts_of_each_stage_and_spans_add_up(result: Result) -> None:
    for stage in result.stages:
        assert stage.total_s == pytest.approx(result.iteration_time_s, rel=1e-9)
    assert_spans_add_up(result)


def test_operators_add_up_to_the_breakdown_and_have_limits_with_sources(result: Result) -> None:
    tables = [result.operators(stage) for stage in range(result.num_stages)]
    for breakdown, table in zip(result.stages, tables, strict=True):
        exposed_s = math.fsum(row.exposed_s for row in table.rows)
        idle_s = breakdown.launch_s + breakdown.bubble_s
        assert exposed_s + idle_s == pytest.approx(result.iteration_time_s, rel=1e-9)
        for row in table.rows:
            # A backward pass also waits for the way of its activations to the disks.
            assert row.exposed_s <= row.total_s * (1 + 1e-12)
            assert row.exposed_s >= 0
            assert row.alone_s <= row.total_s + 1e-9 * result.iteration_time_s
            if row.total_s:
                assert row.bottleneck, row.name
                assert {row.bottleneck.entry, *row.bottleneck.shares} <= table.sources.keys()
        assert all(source.source for source in table.sources.values())
    replicas = result.plan.mesh.size("tp", "cp", "dp")
    rows = [row for table in tables for row in table.rows]
    if not result.plan.recorded:
        assert replicas * sum(row.model_flops for row in rows) == result.model_flops
    assert replicas * sum(row.flops for row in rows) == result.hardware_flops


def test_bars_of_a_row_do_not_overlap(result: Result) -> None:
    bars = result.bars
    for stage in range(result.num_stages):
        lasts = bars.end_s > bars.start_s
        own = bars.where((bars.stage == stage) & (lanes_of(bars) == OWN) & lasts)
        own = own.where(np.argsort(own.start_s, kind="stable"))
        assert (own.start_s[1:] >= own.end_s[:-1] * (1 - 1e-12)).all()
        assert own.start_s[0] >= 0 and own.end_s[-1] <= result.timeline.makespan_s


def test_a_pass_takes_its_kernels_at_least_and_everything_in_turn_at_most(result: Result) -> None:
    if result.plan.recorded:  # with streams of its own
        return
    model = result.seconds.machine.model
    machine = PassMachine(model.seconds, 0.0, model.device_load)
    for each in passes_of(result):
        record = record_pass(each)
        took_s = simulate_pass(record, machine).duration_s
        works = [op.work for op in record.ops]
        kernels = [work for work in works if not isinstance(work, Collective | HostWork)]
        assert took_s >= math.fsum(map(model.seconds, kernels)) * (1 - 1e-9)
        assert took_s <= math.fsum(map(model.seconds, works)) * (1 + 1e-9)


def test_no_op_is_faster_than_the_chip_and_mfu_is_hfu_at_most_unless_masked(result: Result) -> None:
    assert_no_op_is_below_its_floor(result)
    assert_mfu_is_hfu_at_most_unless_masked(result)


def test_memory_over_time_rises_to_the_peak_whose_parts_add_up(result: Result) -> None:
    for number, stage in enumerate(result.memory.stages):
        curve = result.memory_curve(number)
        assert max(curve.held_bytes) == stage.peak_bytes
        assert list(curve.times_s) == sorted(curve.times_s)
        assert sum(stage.components_bytes.values()) == stage.peak_bytes


def test_halves_of_a_backward_pass_are_the_whole(result: Result) -> None:
    for whole in passes_of(result):
        if whole.kind != "B" or result.plan.recorded:
            continue
        ops = [*record_pass(whole).ops]
        assert pass_flops(whole) == (total_model_flops(ops), total_flops(ops))
        halves = [replace(whole, kind=kind) for kind in ("I", "W")]
        of_halves = Counter(repr(op.work) for half in halves for op in record_pass(half).ops)
        assert of_halves == Counter(repr(op.work) for op in ops)
        assert pass_memory(halves[1]).remaining_bytes <= pass_memory(whole).remaining_bytes


def test_without_variation_draws_are_the_iteration_and_fewer_draws_are_a_prefix(
    result: Result,
) -> None:
    drawn = draw(result, draws=2)
    assert np.array_equal(drawn.times_s[:1], draw(result, draws=1).times_s)
    if result.plan.mesh.num_ranks <= 8:  # SimPy runs each replica
        again = draw(simulate(result.scenario, engine="simpy"), draws=1)
        assert np.array_equal(drawn.times_s[:1], again.times_s)
    still = simulate(result.scenario.replace({"variation": STILL}))
    assert (draw(still, draws=2).times_s == still.iteration_time_s).all()
    assert still.iteration_time_s == result.iteration_time_s


def test_scenario_and_result_survive_yaml_and_json(result: Result, tmp_path: Path) -> None:
    scenario = result.scenario
    values = scenario.model_dump(mode="json", by_alias=True, exclude_unset=True)
    file = tmp_path / "drawn.yaml"
    file.write_text(yaml.safe_dump(values), "utf-8")
    assert load_scenario(file).replace({"name": None}) == scenario.replace({"name": None})
    data = result.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert len(repr(result)) < 200


def test_every_page_can_be_printed(result: Result) -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(terminal_page(result_view(result)))
    for stage in result.memory.stages:
        console.print(terminal_page(memory_view(replace(result.memory_report, stages=(stage,)))))


@pytest.mark.parametrize("resource", ["tensor_cores", "memory_bandwidth", "network"])
def test_more_of_a_resource_is_never_slower(result: Result, resource: str) -> None:
    more = simulate(result.scenario.replace({f"hardware.scale.{resource}": 2.0}))
    assert more.iteration_time_s <= result.iteration_time_s * (1 + 1e-9)
