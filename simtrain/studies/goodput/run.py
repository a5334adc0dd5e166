"""Draw a whole training many times: simulate the iteration once, then its failures and recovery."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from simtrain.base.request import takes
from simtrain.hardware.entries import entry_of, with_changed
from simtrain.hardware.load import profile_of
from simtrain.hardware.reliability import Reliability
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.goodput.closed_forms import best_interval_s, expected_ratio
from simtrain.studies.goodput.entries import (
    TrainingFacts,
    entry_names,
    failures_of,
    fleet_of,
    write_s,
)
from simtrain.studies.goodput.fleet import Fleet
from simtrain.studies.goodput.length import check_length
from simtrain.studies.goodput.limits import Terms, check_fleet, check_gpus, check_memory
from simtrain.studies.goodput.result import Goodput, Hinge, Lever
from simtrain.studies.goodput.training import Training, draw_training
from simtrain.studies.goodput_request import GoodputRequest
from simtrain.studies.simulation import result_of, scenario_of
from simtrain.studies.variation.run import mean_time_s

_MOST_OF_LEVERS = 40
"""Trainings that are drawn for each lever; the same ones with and without it."""
_NUM_HINGES = 3

OnProgress = Callable[[str, int, int], None]


@takes(GoodputRequest)
def goodput(request: GoodputRequest) -> Goodput:
    """Draw a whole training with failures, restarts, checkpoints and spares many times.

    Raises:
        InputError: an argument is invalid (E885 to E889), or the scenario is.
    """
    return goodput_with_progress(request)


def goodput_with_progress(
    request: GoodputRequest, on_progress: OnProgress = lambda phase, done, total: None
) -> Goodput:
    """As `goodput`; `on_progress` gets a phase, and how many of its trainings are drawn."""
    terms = Terms.read(request)
    result = result_of(_with_gpus(request.scenario, request.gpus))
    scenario = result.scenario
    name, reliability = failures_of(result.profile, request.reliability)
    facts = _facts(result, terms, request)
    iteration_time_s = facts.iteration_time_s
    check_memory(facts.num_nodes, request)
    fleet = fleet_of(facts, reliability)
    check_fleet(fleet, write_s(facts, reliability), request)
    tokens_per_s = scenario.batch.global_ * scenario.model.seq_length / iteration_time_s
    work_s = math.inf if terms.num_tokens is None else terms.num_tokens / tokens_per_s
    work_s = work_s if math.isinf(work_s) else _whole_iterations(work_s, iteration_time_s)
    check_length(fleet, work_s, terms.limit_s)
    end = (work_s, terms.limit_s)
    trainings = _draw(fleet, request, end, "trainings", request.draws, on_progress)
    return Goodput(
        scenario=scenario.name,
        cluster=scenario.cluster,
        reliability=name,
        num_gpus=scenario.num_gpus,
        iteration_time_s=iteration_time_s,
        tokens_per_s=tokens_per_s,
        num_tokens=terms.num_tokens,
        fleet=fleet,
        seed=request.seed,
        trainings=trainings,
        closed_form=expected_ratio(fleet),
        best_interval_s=best_interval_s(fleet.checkpoint.blocking_s, fleet.failures_per_s),
        hinges=_hinges(facts, reliability),
        levers=_levers(fleet, request, end, trainings, on_progress),
    )


def _with_gpus(scenario: Scenario | Result, gpus: int | None) -> Scenario | Result:
    """Return a scenario with as many replicas as the GPUs hold, and nodes for them.

    The global batch grows with the replicas, so that each has as much work as before.
    """
    if gpus is None:
        return scenario
    base = scenario_of(scenario)
    replicas = check_gpus(base, gpus)
    if replicas == base.parallelism.data:
        return scenario
    sequences = base.batch.global_ // base.parallelism.data * replicas
    changes: dict[str, object] = {"parallelism.data": replicas, "batch.global": sequences}
    cluster = profile_of(base).cluster
    if gpus > cluster.num_gpus:
        changes["hardware.cluster.num_nodes"] = -(-gpus // cluster.gpus_per_node.value)
    return base.replace(changes)


def _facts(result: Result, terms: Terms, request: GoodputRequest) -> TrainingFacts:
    scenario = result.scenario
    return TrainingFacts(
        num_gpus=scenario.num_gpus,
        gpus_per_node=result.profile.cluster.gpus_per_node.value,
        num_replicas=scenario.parallelism.data,
        num_parameters=result.num_parameters,
        iteration_time_s=mean_time_s(result),
        network_bytes_per_s=_network_bytes_per_s(result),
        checkpoint=request.checkpoint,
        interval_s=terms.interval_s,
        by_replica=request.recovery == "replica",
        shrinks=request.without_spare == "shrink",
        spares=request.spares,
    )


def _network_bytes_per_s(result: Result) -> float:
    """Return the bandwidth of the network of all nodes together; infinite for one node."""
    network, scenario = result.profile.inter_node, result.scenario
    if network is None:
        return math.inf
    num_nodes = scenario.num_gpus / result.profile.cluster.gpus_per_node.value
    of_node = network.num_adapters.value * network.adapter_bandwidth.value
    return num_nodes * of_node * network.whole_node_efficiency.value


def _whole_iterations(work_s: float, iteration_time_s: float) -> float:
    """Return the seconds of whole iterations that do the work."""
    return math.ceil(round(work_s / iteration_time_s, 6)) * iteration_time_s


def _draw(
    fleet: Fleet,
    request: GoodputRequest,
    end: tuple[float, float],
    phase: str,
    draws: int,
    on_progress: OnProgress,
) -> tuple[Training, ...]:
    """Draw trainings; each has its own seed, so that fewer draws are the first of more."""
    trainings = []
    for number, seed in enumerate(np.random.SeedSequence(request.seed).spawn(draws)):
        on_progress(phase, number, draws)
        trainings.append(draw_training(fleet, seed, *end, spans=number == 0))
    return tuple(trainings)


def _hinges(facts: TrainingFacts, reliability: Reliability) -> tuple[Hinge, ...]:
    """Return the entries whose double changes the closed form most."""
    now = expected_ratio(fleet_of(facts, reliability))
    hinges = []
    for name in entry_names(reliability):
        doubled = with_changed(reliability, name, lambda value: 2 * value)
        entry = entry_of(reliability, name)
        change = expected_ratio(fleet_of(facts, doubled)) - now
        hinges.append(Hinge(f"reliability.{name}", float(entry.value), entry.source, change))
    hinges.sort(key=lambda hinge: -abs(hinge.change))
    return tuple(hinges[:_NUM_HINGES])


def _levers(
    fleet: Fleet,
    request: GoodputRequest,
    end: tuple[float, float],
    trainings: tuple[Training, ...],
    on_progress: OnProgress,
) -> tuple[Lever, ...]:
    """Return what raises the ratio, drawn with the same seeds."""
    draws = min(len(trainings), _MOST_OF_LEVERS)
    before = _mean_ratio(trainings[:draws])
    levers = []
    for change, changed in _changes(fleet):
        ratio = _mean_ratio(_draw(changed, request, end, change, draws, on_progress))
        levers.append(Lever(change, ratio, ratio - before))
    levers.sort(key=lambda lever: -lever.gain)
    return tuple(levers)


def _mean_ratio(trainings: tuple[Training, ...]) -> float:
    return math.fsum(training.effective_ratio for training in trainings) / len(trainings)


def _changes(fleet: Fleet) -> Iterator[tuple[str, Fleet]]:
    """Yield changes in words, each with the fleet after it."""
    each = fleet.checkpoint
    quick = tuple(replace(cause, detection_s=0.0, diagnosis_s=0.0) for cause in fleet.causes)
    yield "detect and diagnose at once", replace(fleet, causes=quick)
    yield "restart in half the time", replace(fleet, restart_s=fleet.restart_s / 2)
    half = max(each.interval_s / 2, each.write_s)
    if half < each.interval_s:
        shorter = replace(each, interval_s=half)
        yield "checkpoints twice as often", replace(fleet, checkpoint=shorter)
    longer = replace(each, interval_s=2 * each.interval_s)
    yield "checkpoints half as often", replace(fleet, checkpoint=longer)
    yield "twice the spares, and one", replace(fleet, spares=2 * fleet.spares + 1)
    rarer = tuple(replace(cause, per_s=cause.per_s / 2) for cause in fleet.causes)
    yield "half of the failures", replace(fleet, causes=rarer)
