"""What a search cannot answer, and what to ask instead."""

from __future__ import annotations

import math

from simtrain.errors import DoesNotFitError, InputError, Location, Problem
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import REASONS
from simtrain.search.legality import Legal, legal_points
from simtrain.search.looker import Seen
from simtrain.search.objective import Objective
from simtrain.search.space import Point, Space
from simtrain.search.words import as_options, num_gpus_in_words
from simtrain.units import UnitError, format_bytes, parse_bytes

_MIB = 2**20
_NEAR = 16
"""So many numbers of GPUs, to either side, are looked at for one with a legal configuration."""


def objective_of(written: Objective | str) -> Objective:
    """What is looked for, by its word.

    Raises:
        InputError: there is no such objective.
    """
    if written in list(Objective):
        return Objective(written)
    known = ", ".join(Objective)
    problem = Problem("E834", f"objective is {written!r}", fix=f"write one of {known}")
    raise InputError([problem])


def check_counts(gpus: tuple[int, ...], top: int, max_trials: int | None) -> None:
    """Refuse no numbers of GPUs, and what counts nothing.

    Raises:
        InputError: with every number that is not a whole one of at least 1.
    """
    asked: list[tuple[str, object]] = [("gpus", number) for number in gpus] or [("gpus", gpus)]
    asked += [("top", top)]
    asked += [("max_trials", max_trials)] if max_trials is not None else []
    wrong = [(name, value) for name, value in asked if not (type(value) is int and value >= 1)]
    if wrong:
        raise InputError(
            Problem("E834", f"{name} is {value!r}", fix="write a whole number of at least 1")
            for name, value in wrong
        )


def check_gpus(gpus: tuple[int, ...], profile: HardwareProfile) -> None:
    """Refuse more GPUs than the cluster has.

    Raises:
        InputError: with the cluster's size.
    """
    cluster = profile.cluster
    too_many = [number for number in gpus if number > cluster.num_gpus]
    if not too_many:
        return
    raise InputError(
        Problem(
            "E832",
            f"{number} GPUs are more than the {cluster.num_gpus} of {profile.name} "
            f"({cluster.num_nodes.value} nodes of {cluster.gpus_per_node.value})",
            Location("--gpus"),
            reason="every rank of the job runs on a GPU of its own",
            fix=f"write at most {cluster.num_gpus}, or name another cluster: --set cluster=NAME",
        )
        for number in too_many
    )


def memory_limit(written: str | None, profile: HardwareProfile) -> int:
    """What the peaks may not exceed, in bytes: what is written, else what a GPU has.

    Raises:
        InputError: it is no amount of memory, or more than a GPU has.
    """
    capacity_bytes = profile.gpu.memory_capacity.value
    if written is None:
        return capacity_bytes
    place = Location("--max-memory")
    try:
        limit_bytes = parse_bytes(written)
    except UnitError as error:
        raise InputError([Problem("E833", str(error), place, fix=error.fix)]) from error
    if limit_bytes <= capacity_bytes:
        return limit_bytes
    capacity = format_bytes(capacity_bytes)
    problem = Problem(
        "E833",
        f"{written} is more than the {capacity} of a GPU of {profile.name}",
        place,
        reason="nothing may exceed what a GPU has, with this option or without it",
        fix=f"write at most {capacity}, leave it out, or name another cluster: --set cluster=NAME",
    )
    raise InputError([problem])


def none_legal(space: Space, legal: Legal, profile: HardwareProfile) -> InputError:
    """No configuration is legal: which rules removed how many of them, and where some are."""
    removed = [
        f"\n    {code}, {number}: {REASONS[code]}" for code, number in legal.removed.most_common()
    ]
    held = as_options(Point.of(space.base), sorted(space.held))
    gpus = num_gpus_in_words(space.gpus)
    return InputError(
        [
            Problem(
                "E831",
                f"none of {legal.num_configurations} configurations on {gpus} is legal",
                reason="rules removed" + "".join(removed)
                if removed
                else f"no tensor x pipeline x data is {gpus} with what --set holds",
                fix=f"search on {_other_gpus(space, profile)}, or with another global batch"
                + (f", or without --set {' --set '.join(held)}" if held else ""),
            )
        ]
    )


def _other_gpus(space: Space, profile: HardwareProfile) -> str:
    """The numbers of GPUs below and above those of the space on which something is legal."""
    least, most = space.gpus[0], space.gpus[-1]
    below = range(least - 1, max(least - _NEAR, 1) - 1, -1)
    above = range(most + 1, min(most + _NEAR, profile.cluster.num_gpus) + 1)

    def has_legal(number: int) -> bool:
        return bool(legal_points(Space(space.base, (number,))).points)

    nearest = (next(filter(has_legal, numbers), None) for numbers in (below, above))
    found = [number for number in nearest if number]
    return num_gpus_in_words(found) if found else "another number of GPUs"


def none_fits(
    space: Space, seen: Seen, limit_bytes: int, profile: HardwareProfile, *, exact: bool
) -> DoesNotFitError:
    """No configuration fits: what misses least, and what would leave it more memory."""
    nearest = seen.nearest
    assert nearest is not None, "where nothing fits, something misses least"
    missing = seen.nearest_peak_bytes - limit_bytes
    configuration = " ".join(as_options(Point.of(nearest)))
    those = f"{seen.num_seen} legal configurations" + ("" if exact else " that were looked at")
    return DoesNotFitError(
        [
            Problem(
                "E830",
                f"none of {those} fits",
                reason=f"the least that is missing is {format_bytes(missing)}: "
                f"{configuration} needs {format_bytes(seen.nearest_peak_bytes)} of "
                f"{format_bytes(limit_bytes)}",
                fix=_more_memory(space, seen.nearest_peak_bytes, limit_bytes, profile),
            )
        ]
    )


def _more_memory(space: Space, peak_bytes: int, limit_bytes: int, profile: HardwareProfile) -> str:
    ways = ["on more GPUs"] if max(space.gpus) < profile.cluster.num_gpus else []
    if profile.host_link is not None and not space.base.memory.offload_optimizer:
        ways.append("with --set memory.offload_optimizer=true")
    needed = math.ceil(peak_bytes / _MIB)
    if limit_bytes < needed * _MIB <= profile.gpu.memory_capacity.value:
        ways.append(f"with --max-memory {needed}MiB")
    ways.append("on a cluster whose GPUs have more memory")
    return "search " + ", or ".join(ways)
