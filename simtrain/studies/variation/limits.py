"""Refuse draws that cannot be made."""

from __future__ import annotations

from simtrain.errors import InputError, Location
from simtrain.iteration.plan import Plan
from simtrain.studies.draw_request import DrawRequest

_MOST_DRAWS = 1_000_000
_MOST_WORKERS = 1024


def check_numbers(request: DrawRequest) -> None:
    """Refuse numbers that are out of their range (E960), and workers on a Ray cluster (E908)."""
    _check_whole("--draws", request.draws, 1, _MOST_DRAWS)
    _check_whole("--seed", request.seed, 0, 2**64 - 1)
    _check_whole("--workers", request.workers, 1, _MOST_WORKERS)
    if request.ray is not None and request.workers != 1:
        message, fix = "has no effect with --ray", "remove one of them"
        raise InputError.of("E908", message, Location(f"--workers {request.workers}"), fix)


def check_plan(plan: Plan) -> None:
    """Refuse a slow link of which nothing leaves its node (E962)."""
    scenario, mesh = plan.scenario, plan.mesh
    slow = scenario.variation.slow
    if slow is None or slow.what != "link" or mesh.num_ranks > mesh.gpus_per_node:
        return
    raise InputError.of(
        "E962",
        f"variation.slow is a link, but all {mesh.num_ranks} GPUs share a node",
        scenario.positions.of_value(("variation", "slow", "what")),
        fix="write what: gpu, or use GPUs of several nodes",
        reason="a link is what connects a node with other nodes",
    )


def _check_whole(option: str, value: object, least: int, most: int) -> None:
    if type(value) is int and least <= value <= most:
        return
    fix = f"write a whole number from {least} to {most}"
    raise InputError.of("E960", f"{option} is {value!r}", Location(option), fix=fix)
