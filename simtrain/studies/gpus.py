"""A scenario on another number of GPUs: `--gpus` of every command."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from simtrain.errors import InputError, Location
from simtrain.hardware.load import profile_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_scenario
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
            break a rule.
    """
    if gpus == base.num_gpus:
        return {}
    of_replica, cluster = base.num_gpus // base.parallelism.data, profile_of(base).cluster
    place = Location(f"--gpus {gpus}")
    if type(gpus) is not int or gpus < 1 or gpus % of_replica:
        message = f"{gpus!r} is not a multiple of the {of_replica} GPUs of a replica"
        reason = "a training has whole replicas of its model"
        nearest = of_replica * max(round(gpus / of_replica), 1)
        raise InputError.of("E886", message, place, f"write --gpus {nearest}", reason)
    replicas = gpus // of_replica
    fields: dict[str, object] = {"parallelism.data": replicas}
    if scale_batch:
        fields["batch.global"] = base.batch.global_ * replicas // base.parallelism.data
    if gpus > cluster.num_gpus:
        fields["hardware.cluster.num_nodes"] = -(-gpus // cluster.gpus_per_node.value)
    try:
        check_scenario(base.replace(fields))
    except InputError as error:
        raise InputError([replace(error.problems[0], location=place)]) from error
    return fields
