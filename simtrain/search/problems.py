"""The errors of a search: why it has no answer, and what to search instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simtrain.errors import DoesNotFitError, InputError, Location, Problem
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import REASONS
from simtrain.search.legality import Legal, legal_points, rules_on
from simtrain.search.looker import Looker, Seen
from simtrain.search.objective import Objective
from simtrain.search.space import FIELDS, Point, Space
from simtrain.search.words import as_options, num_gpus_in_words
from simtrain.units import UnitError, format_bytes, parse_bytes

_MIB = 2**20
_NEAR = 16
"""Numbers of GPUs to try on either side for one with a legal configuration."""


class SearchStoppedError(DoesNotFitError):
    """A search was stopped before it found a configuration that fits."""


def objective_of(written: Objective | str) -> Objective:
    """The objective with a name.

    Raises:
        InputError: there is no such objective.
    """
    if written not in list(Objective):
        fix = f"write one of {', '.join(Objective)}"
        raise InputError.of("E834", f"objective is {written!r}", fix=fix)
    return Objective(written)


Degrees = Mapping[str, Sequence[int] | None]
"""Numbers of ranks that were asked for, by the name of their coordinate."""


def check_counts(
    gpus: tuple[int, ...], top: int, max_trials: int | None, workers: int, degrees: Degrees
) -> None:
    """Refuse numbers that count nothing, and no number of GPUs.

    Raises:
        InputError: with every number that is not an integer of at least 1.
    """
    trials = () if max_trials is None else (max_trials,)
    counts: dict[str, Sequence[object]] = {"gpus": gpus or ((),), "top": (top,)}
    counts |= {"max_trials": trials, "workers": (workers,)}
    counts |= {name: given or ((),) for name, given in degrees.items() if given is not None}
    problems = [
        Problem("E834", f"{name} is {value!r}", fix="write a whole number of at least 1")
        for name, values in counts.items()
        for value in values
        if type(value) is not int or value < 1
    ]
    if problems:
        raise InputError(problems)


def check_degrees(space: Space, degrees: Degrees) -> None:
    """Refuse to choose a number of ranks that is held.

    Raises:
        InputError: a field of the scenario was given by --set and by an option of its own.
    """
    problems = [
        Problem(
            "E834",
            f"{FIELDS[name]} is given by --set and by --{name}",
            Location(f"--{name}"),
            fix=f"leave out one of them: --{name} 4 alone searches 4, --{name} 1,2,4 all three",
        )
        for name, given in degrees.items()
        if given is not None and name in space.held
    ]
    if problems:
        raise InputError(problems)


def check_budget(seconds: float | None) -> None:
    """Refuse a budget that is no time.

    Raises:
        InputError: it is not a finite number above 0.
    """
    is_number = type(seconds) in (int, float)
    if seconds is None or (is_number and 0 < seconds < math.inf):
        return
    fix = "write a number of seconds above 0, or leave it out to search to the end"
    raise InputError.of("E834", f"seconds is {seconds!r}", fix=fix)


def check_alone(workers: int) -> None:
    """Refuse workers for proposals, each of which follows from the results of those before it.

    Raises:
        InputError: there is more than one worker.
    """
    if workers > 1:
        raise InputError.of(
            "E835",
            f"{workers} workers cannot share proposals",
            Location("--workers"),
            "leave out --workers, or leave out --trials to look at every configuration",
            "each proposal of --trials follows from the results of those before it",
        )


def check_gpus(gpus: tuple[int, ...], profile: HardwareProfile) -> None:
    """Refuse more GPUs than the cluster has.

    Raises:
        InputError: with the cluster's size.
    """
    cluster = profile.cluster
    problems = [
        Problem(
            "E832",
            f"{number} GPUs are more than the {cluster.num_gpus} of {profile.name} "
            f"({cluster.num_nodes.value} nodes of {cluster.gpus_per_node.value})",
            Location("--gpus"),
            reason="every rank of the job runs on a GPU of its own",
            fix=f"write at most {cluster.num_gpus}, or name another cluster: --set cluster=NAME",
        )
        for number in gpus
        if number > cluster.num_gpus
    ]
    if problems:
        raise InputError(problems)


def memory_limit(written: str | None, profile: HardwareProfile) -> int:
    """The bytes that a peak may not exceed: the written amount, else the capacity of a GPU.

    Raises:
        InputError: it is no amount of memory, or more than a GPU has.
    """
    capacity_bytes, place = profile.gpu.memory_capacity.value, Location("--max-memory")
    if written is None:
        return capacity_bytes
    try:
        limit_bytes = parse_bytes(written)
    except UnitError as error:
        raise InputError.of("E833", str(error), place, fix=error.fix) from error
    if limit_bytes <= capacity_bytes:
        return limit_bytes
    capacity = format_bytes(capacity_bytes)
    raise InputError.of(
        "E833",
        f"{written} is more than the {capacity} of a GPU of {profile.name}",
        place,
        reason="nothing may exceed what a GPU has, with this option or without it",
        fix=f"write at most {capacity}, leave it out, or name another cluster: --set cluster=NAME",
    )


def none_legal(space: Space, legal: Legal, profile: HardwareProfile) -> InputError:
    """No configuration is legal: how many each rule removed, and where some are legal."""
    gpus = num_gpus_in_words(space.gpus)
    reason = f"no tensor x pipeline x data x context is {gpus} with what is held"
    if legal.removed:
        reason = "rules removed" + "".join(
            f"\n    {code}, {number}: {REASONS[code]}"
            for code, number in legal.removed.most_common()
        )
    held = as_options(Point.of(space.base), sorted(space.held))
    fix = f"search on {_other_gpus(space, profile)}, or with another global batch"
    fix += f", or without --set {' --set '.join(held)}" if held else ""
    message = f"none of {legal.num_configurations} configurations on {gpus} is legal"
    return InputError.of("E831", message, reason=reason, fix=fix)


def _other_gpus(space: Space, profile: HardwareProfile) -> str:
    """The numbers of GPUs below and above those of the space on which something is legal."""
    least, most = space.gpus[0], space.gpus[-1]
    below = range(least - 1, max(least - _NEAR, 1) - 1, -1)
    above = range(most + 1, min(most + _NEAR, profile.cluster.num_gpus) + 1)

    def has_legal(number: int) -> bool:
        return bool(legal_points(space.on((number,)), rules_on(profile)).points)

    nearest = (next(filter(has_legal, numbers), None) for numbers in (below, above))
    found = [number for number in nearest if number]
    return num_gpus_in_words(found) if found else "another number of GPUs"


def none_fits(
    looker: Looker, seen: Seen, profile: HardwareProfile, num_legal: int
) -> DoesNotFitError:
    """No configuration fits: the one that misses least, and what would leave it more memory."""
    assert seen.nearest is not None, "if nothing fits, something misses least"
    space, limit_bytes = looker.space, looker.limit_bytes
    peak_bytes = looker.peak_bytes(seen.nearest)
    ways = ["for longer"] if seen.stopped else []
    ways += ["on more GPUs"] if max(space.gpus) < profile.cluster.num_gpus else []
    if profile.host_link is not None and not space.base.memory.offload_optimizer:
        ways.append("with --set memory.offload_optimizer=true")
    needed = math.ceil(peak_bytes / _MIB)
    if limit_bytes < needed * _MIB <= profile.gpu.memory_capacity.value:
        ways.append(f"with --max-memory {needed}MiB")
    ways.append("on a cluster whose GPUs have more memory")
    message = f"none of {seen.num_seen} legal configurations"
    message += "" if seen.exact else " that were looked at"
    unseen = f"; {num_legal - seen.num_seen} were not looked at before the search was stopped"
    kind = SearchStoppedError if seen.stopped else DoesNotFitError
    return kind.of(
        "E830",
        f"{message} fits{unseen if seen.stopped else ''}",
        reason=f"the least that is missing is {format_bytes(peak_bytes - limit_bytes)}: "
        f"{' '.join(as_options(seen.nearest, space.axes))} needs {format_bytes(peak_bytes)} of "
        f"{format_bytes(limit_bytes)}",
        fix="search " + ", or ".join(ways),
    )
