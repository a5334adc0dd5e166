"""Plan a training run: the best layout and its cost for each cluster and number of GPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from simtrain.base.resources import find_profile
from simtrain.errors import Location
from simtrain.hardware.load import profile_of
from simtrain.scenario import Scenario, check_values
from simtrain.studies.cost import Contract, Limits, Terms, read_budget, training_cost
from simtrain.studies.cost.limits import NO_LIMITS
from simtrain.studies.objectives.registry import DEFAULT, OF_TRAININGS, objective_of
from simtrain.studies.planning.layout import NOT_SEARCHED, Combination
from simtrain.studies.planning.problems import check_currencies, check_plan, no_layout
from simtrain.studies.planning.result import PlanRow, TrainingPlan, best_row
from simtrain.studies.planning.searches import search_layouts
from simtrain.studies.search.explorer import ProgressCallback
from simtrain.studies.search.request import as_list


def plan(
    base: Scenario,
    tokens: int | str,
    clusters: Sequence[str],
    gpus: int | Sequence[int],
    *,
    days: float | None = None,
    budget: str | None = None,
    goodput: float = 1.0,
    price: str | None = None,
    contract: Contract = "on_demand",
    pue: float = 1.0,
    electricity: str | None = None,
    co2: float | None = None,
    objective: str = DEFAULT,
    workers: int = 1,
    seconds: float | None = None,
) -> TrainingPlan:
    """Find clusters and numbers of GPUs that train a model within a time and a budget.

    Args:
        base, clusters, gpus, objective, workers, seconds: as for `plan_training`.
        tokens, goodput, price, contract, pue, electricity, co2: as for `simtrain.cost`; a `price`
            is that of all clusters.
        days: maximum training time.
        budget: maximum price, such as "2M" or "2M USD".

    Raises:
        InputError, DoesNotFitError: as `plan_training`.
    """
    return plan_training(
        base,
        Terms.read(
            tokens,
            goodput=goodput,
            price=price,
            contract=contract,
            pue=pue,
            electricity=electricity,
            co2=co2,
        ),
        clusters,
        as_list(gpus),
        limits=Limits(days, None if budget is None else read_budget(budget)),
        objective=objective,
        workers=workers,
        seconds=seconds,
    )


def plan_training(
    base: Scenario,
    terms: Terms,
    clusters: Sequence[str],
    gpus: Sequence[int],
    *,
    limits: Limits = NO_LIMITS,
    objective: str = DEFAULT,
    workers: int = 1,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_progress: ProgressCallback = lambda phase, done, total, best: None,
) -> TrainingPlan:
    """Find the best layout for each cluster and number of GPUs, and its training cost.

    On one cluster with one number of GPUs the fastest layout is also the cheapest.

    Args:
        base: model and global batch; see `search` for the fields that keep their values.
        terms: tokens, prices and power.
        clusters: names or paths of hardware profiles. A cluster with fewer GPUs than the largest
            of `gpus` gets more nodes.
        gpus: numbers of GPUs.
        limits: maximum days and price.
        objective: name of the objective that sorts the rows.
        workers: processes, each searching one combination at a time. Their number does not change
            the plan. A script with several workers needs `if __name__ == "__main__":`, because
            workers import it.
        seconds: time budget, shared by the combinations; see `search` for the result of a search
            that it ends.
        interrupted: polled; True ends the plan with the rows found so far. Workers finish their
            current searches unless Ctrl-C reaches them too.
        on_progress: receives the current search, the number of finished combinations, the number
            of all combinations, and the best row so far.

    Raises:
        InputError: an argument is invalid, a cluster is unknown, prices are in several currencies,
            or no combination has a legal layout.
        DoesNotFitError: no combination has a layout, and some of them do not fit in memory.
    """
    check_values(base)
    check_plan(clusters, gpus, workers, seconds)
    sorts_by = objective_of(objective, OF_TRAININGS)
    names = tuple(dict.fromkeys(clusters))
    num_nodes = {name: _num_nodes_needed(base, name, max(gpus)) for name in names}
    bases = {name: _on_cluster(base, name, num_nodes[name]) for name in names}
    profiles = {name: profile_of(scenario) for name, scenario in bases.items()}
    check_currencies(profiles, terms, limits)
    cost_of = functools.partial(training_cost, terms=terms)
    combinations = [Combination(name, number) for name in names for number in dict.fromkeys(gpus)]
    row_of = {combination: PlanRow(*combination, NOT_SEARCHED) for combination in combinations}

    def report(phase: str) -> None:
        """Report the current search and the best row so far."""
        num_done = sum(row.layout is not NOT_SEARCHED for row in row_of.values())
        best = best_row(row_of.values(), sorts_by)
        on_progress(phase, num_done, len(combinations), str(best or ""))

    layouts = search_layouts(bases, combinations, workers, seconds, interrupted, report)
    for combination, layout in layouts:
        row_of[combination] = PlanRow.of(
            combination, layout, profiles[combination.cluster], limits, cost_of
        )
    rows = [*row_of.values()]
    if not any(row.best for row in rows):
        raise no_layout(rows, seconds)
    return TrainingPlan(
        scenario=base.name,
        num_tokens=terms.num_tokens,
        goodput=terms.goodput,
        limits=limits,
        objective=sorts_by,
        rows=tuple(sorted(rows, key=lambda row: row.key(sorts_by))),
        added_nodes={name: number for name, number in num_nodes.items() if number is not None},
        shared_overrides=bool(base.hardware) and len(names) > 1,
        stopped=any(not row.layout.exact for row in rows),
    )


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
