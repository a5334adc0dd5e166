"""Calls of the framework: which ops begin one, and how long the host takes for those of a pass."""

from dataclasses import replace

import numpy as np
import pytest

from simtrain.engine import Engine
from simtrain.hardware.load import load_profile
from simtrain.hardware.upgrades import RESOURCES, with_more
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.pass_tasks import PassMachine, run_pass
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.issue import IssueOrder, LaunchKind, OverlapPolicy
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.passes import record_pass
from simtrain.workload.tape import record

TINY = (
    *("model.hidden_size=256", "model.num_attention_heads=4", "model.num_query_groups=4"),
    *("model.ffn_hidden_size=512", "model.num_layers=4", "model.seq_length=512"),
)


def tiny(*assignments: str) -> Scenario:
    return load_scenario("llama3_8b", [*TINY, *assignments])


def plan_of(scenario: Scenario) -> Plan:
    cluster = load_profile("h100_sxm").cluster
    return Plan.of(scenario, cluster.domains_of(scenario.num_gpus))


def records(scenario: Scenario) -> list[PassRecord]:
    return [record_pass(one) for one in plan_of(scenario).passes.values()]


def machine_of(call_s: float, *, runs_ahead: bool) -> PassMachine:
    return PassMachine(lambda work: 1e-4, 1e-6, lambda work: 0.1, call_s, runs_ahead)


def test_a_call_is_a_node_that_issues_ops() -> None:
    """Nodes that are views issue nothing."""
    plan = plan_of(tiny())
    (forward, backward) = (record_pass(one) for one in plan.passes.values())
    (chunk,) = plan.model_chunks.different
    layer = next(block for block in chunk.blocks if block.is_unit)
    num_calls = 0
    for node in record(layer, plan.microbatch).nodes:
        order = IssueOrder(OverlapPolicy())
        node.forward(order)
        num_calls += order.position > 0
    of_layer = [segment for segment in forward.segments if segment.ops[0].name.startswith("attent")]
    assert len(of_layer) == 4
    assert all(segment.launches.count(LaunchKind.CALL) == num_calls for segment in of_layer)
    for one in (forward, backward):
        assert all(
            segment.launches[0] is LaunchKind.CALL for segment in one.segments if segment.ops
        )
        assert all(len(segment.launches) == len(segment.ops) for segment in one.segments)


@pytest.mark.parametrize("call_s", [1e-6, 1e-4, 1e-3])
def test_a_pass_takes_the_longer_of_host_and_gpu_if_the_host_runs_ahead(call_s: float) -> None:
    for one in records(tiny()):
        machine = machine_of(call_s, runs_ahead=True)
        gpu_s = run_pass(one, machine_of(0.0, runs_ahead=True)).makespan_s
        host_s = sum(map(machine.host_s, one.segments))
        took_s = run_pass(one, machine).makespan_s
        assert took_s == pytest.approx(max(gpu_s, host_s), rel=1e-12)


def test_a_host_that_waits_before_each_pass_makes_its_calls_meanwhile() -> None:
    for one in records(tiny()):
        ahead, waits = (
            run_pass(one, machine_of(1e-4, runs_ahead=runs_ahead)) for runs_ahead in (True, False)
        )
        assert waits.makespan_s > ahead.makespan_s
        launches_s = (waits.end_s - waits.start_s)[::2]
        starts = [launch is LaunchKind.CALL for part in one.segments for launch in part.launches]
        np.testing.assert_allclose(launches_s, np.where(starts, 1.01e-4, 1e-6))


def test_calls_of_a_host_that_reads_results_are_never_hidden() -> None:
    one = load_scenario("mixtral_8x7b", ["model.num_layers=8", "hardware.host.issue=0 s"])
    calls, none = (
        simulate(one.replace({"software.host_call": call_s})) for call_s in ("135 us", "0 s")
    )
    assert calls.host_bound > none.host_bound
    assert calls.iteration_time_s > none.iteration_time_s


def test_twice_the_speed_of_a_host_halves_its_calls() -> None:
    profile, options = load_profile("h100_sxm"), plan_of(tiny()).options
    fast = with_more(profile, [RESOURCES["host"]], 2)
    calls_s = [Machine.of(one).pass_machine(options).call_s for one in (profile, fast)]
    assert calls_s[0] == 2 * calls_s[1] == options.call_s
    slow = load_scenario("llama3_8b", [*TINY, "hardware.host.speed=0.5"])
    halved = load_scenario("llama3_8b", [*TINY, "software.host_call=270 us"])
    assert simulate(slow).iteration_time_s == simulate(halved).iteration_time_s


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_blocking_launches_add_up(engine: Engine) -> None:
    """Nothing overlaps: a pass takes each op, its launches and its calls, one after the other."""
    split = ("parallelism.tensor=4", "parallelism.sequence_parallel=true")
    for rank in records(tiny(*split)):
        machine = machine_of(5e-5, runs_ahead=False)
        blocking = replace(machine, blocks=True)
        num_ops = sum(len(segment.ops) for segment in rank.segments)
        by_hand_s = 1e-4 * num_ops + sum(map(machine.host_s, rank.segments))
        makespan_s = run_pass(rank, blocking, engine).makespan_s
        assert makespan_s == pytest.approx(by_hand_s, rel=1e-12)
        assert run_pass(rank, machine, engine).makespan_s < makespan_s
