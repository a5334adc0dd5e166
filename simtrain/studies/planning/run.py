"""Plan a training run: the best layout and its cost for each cluster and number of GPUs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from simtrain.base.request import takes
from simtrain.base.resources import find_profile
from simtrain.errors import Location
from simtrain.hardware.load import profile_of
from simtrain.scenario import Scenario, check_values
from simtrain.studies.cost import CostLimits, Terms, training_cost
from simtrain.studies.objectives.objective import Objective
from simtrain.studies.objectives.registry import OF_TRAININGS, objective_of
from simtrain.studies.one_layout import refuse_program
from simtrain.studies.planning.layout import NOT_SEARCHED
from simtrain.studies.planning.problems import check_currencies, check_plan, no_layout
from simtrain.studies.planning.request import PlanRequest
from simtrain.studies.planning.result import PlanRow, TrainingPlan, best_row
from simtrain.studies.planning.searches import search_layouts


@takes(PlanRequest)
def plan(request: PlanRequest) -> TrainingPlan:
    """Find the best layout for each cluster and number of GPUs, and its training cost.

    On one cluster with one number of GPUs the fastest layout is also the cheapest.

    Raises:
        InputError: an argument is invalid, a cluster is unknown, prices are in several currencies,
            or no combination has a legal layout.
        DoesNotFitError: no combination has a layout, and some of them do not fit in memory.
    """
    terms, limits, base = request.terms, request.limits, request.base
    check_values(base)
    refuse_program(base)
    check_plan(request)
    sorts_by = objective_of(request.objective, OF_TRAININGS)
    most_gpus = max(number for _, number in request.combinations)
    num_nodes = {name: _num_nodes_needed(base, name, most_gpus) for name in request.clusters}
    bases = {name: _on_cluster(base, name, number) for name, number in num_nodes.items()}
    rows = _rows(request, bases, terms, limits, sorts_by)
    if not any(row.best for row in rows):
        raise no_layout(rows, request.seconds)
    return TrainingPlan(
        scenario=base.name,
        num_tokens=terms.num_tokens,
        goodput=terms.goodput,
        limits=limits,
        objective=sorts_by,
        rows=tuple(sorted(rows, key=lambda row: row.key(sorts_by))),
        added_nodes={name: number for name, number in num_nodes.items() if number is not None},
        shared_overrides=bool(base.hardware) and len(bases) > 1,
        stopped=any(not row.layout.is_complete for row in rows),
    )


def _rows(
    request: PlanRequest,
    bases: Mapping[str, Scenario],
    terms: Terms,
    limits: CostLimits,
    sorts_by: Objective,
) -> list[PlanRow]:
    """Search each combination, and report the best row so far."""
    profiles = {name: profile_of(scenario) for name, scenario in bases.items()}
    check_currencies(profiles, terms, limits)
    cost_of = functools.partial(training_cost, terms=terms)
    combinations = request.combinations
    row_of = {combination: PlanRow(*combination, NOT_SEARCHED) for combination in combinations}

    def report(phase: str) -> None:
        """Report the current search and the best row so far."""
        num_done = sum(row.layout is not NOT_SEARCHED for row in row_of.values())
        best = best_row(row_of.values(), sorts_by)
        request.on_progress(phase, num_done, len(combinations), str(best or ""))

    for combination, layout in search_layouts(request, bases, report):
        profile = profiles[combination.cluster]
        row_of[combination] = PlanRow.of(combination, layout, profile, limits, cost_of)
    return [*row_of.values()]


def _num_nodes_needed(base: Scenario, cluster: str, num_gpus: int) -> int | None:
    """Return the number of nodes with `num_gpus` GPUs; None if the cluster has enough nodes."""
    find_profile(cluster, Location("--cluster"))
    hardware = profile_of(_on_cluster(base, cluster, None)).cluster
    if num_gpus <= hardware.num_gpus:
        return None
    return -(-num_gpus // hardware.gpus_per_node.value)


def _on_cluster(base: Scenario, cluster: str, num_nodes: int | None) -> Scenario:
    """Return the scenario on a cluster, with `num_nodes` nodes if it is not None."""
    changes: dict[str, object] = {} if cluster == base.cluster else {"cluster": cluster}
    if num_nodes is not None:
        changes["hardware.cluster.num_nodes"] = num_nodes
    return base.replace(changes) if changes else base
