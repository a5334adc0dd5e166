"""A scenario on another number of GPUs: `--gpus` of every command."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from simtrain.errors import InputError, Location
from simtrain.hardware.load import profile_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_scenario
from simtrain.scenario.section import divisors
from simtrain.studies.simulation import scenario_of

Subject = TypeVar("Subject", Scenario, Scenario | Result)


def with_gpus(subject: Subject, gpus: int | None, scale_batch: bool = False) -> Subject | Scenario:
    """Return a scenario on this number of GPUs; errors are those of `changes_to`."""
    base = scenario_of(subject)
    changes = {} if gpus is None else changes_to(base, gpus, scale_batch)
    return base.replace(changes) if changes else subject


def with_scaled_batch(scenario: Scenario, gpus: int) -> Scenario:
    """Return a scenario whose global batch grows by the factor to this number of GPUs.

    Raises:
        InputError: the grown batch has no whole number of sequences (E886).
    """
    now = scenario.batch.global_
    batch, rest = divmod(now * gpus, scenario.num_gpus)
    if rest:
        step = scenario.num_gpus // math.gcd(now, scenario.num_gpus)
        raise InputError.of(
            "E886",
            f"a global batch of {now} on {scenario.num_gpus} GPUs has no whole size on {gpus}",
            Location(f"--scale-batch --gpus {gpus}"),
            f"write --gpus as a multiple of {step}, or --set batch.global without --scale-batch",
            "a batch has whole sequences",
        )
    return scenario.replace({"batch.global": batch})


def changes_to(base: Scenario, gpus: int, scale_batch: bool) -> dict[str, object]:
    """Return fields that give a scenario as many replicas as the GPUs hold, and nodes for them.

    The global batch stays; with `scale_batch` it grows by the factor of the GPUs.

    Raises:
        InputError: the GPUs are no multiple of those of a replica (E886), or that many replicas
            break a rule. The fix is the nearest number that is legal.
    """
    if gpus == base.num_gpus:
        return {}
    of_replica, cluster = base.num_gpus // base.parallelism.data, profile_of(base).cluster

    def changes(replicas: int) -> dict[str, object]:
        fields: dict[str, object] = {"parallelism.data": replicas}
        if scale_batch:
            fields["batch.global"] = base.batch.global_ * replicas // base.parallelism.data
        if replicas * of_replica > cluster.num_gpus:
            num_nodes = -(-replicas * of_replica // cluster.gpus_per_node.value)
            fields["hardware.cluster.num_nodes"] = num_nodes
        check_scenario(base.replace(fields))
        return fields

    is_number = type(gpus) is int and gpus > 0
    if is_number and gpus % of_replica == 0:
        try:
            return changes(gpus // of_replica)
        except InputError as error:
            refused = error
    else:
        message = f"{gpus!r} is not a multiple of the {of_replica} GPUs of a replica"
        reason = "a training has whole replicas of its model"
        refused = InputError.of("E886", message, reason=reason)
    wanted = gpus / of_replica if is_number else 1
    tried = {1, math.ceil(wanted), int(wanted) or 1}
    tried.update(divisors(base.batch.global_))  # a legal number divides it unless it grows
    for replicas in sorted(tried, key=lambda replicas: abs(replicas - wanted)):
        with suppress(InputError):
            changes(replicas)
            place, fix = Location(f"--gpus {gpus}"), f"write --gpus {replicas * of_replica}"
            refused = InputError([replace(refused.problems[0], location=place, fix=fix)])
            break
    raise refused
