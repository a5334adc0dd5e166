"""Errors of a search: wrong arguments, and why there is no result."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from simtrain.errors import DoesNotFitError, InputError, Location, Problem
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.fit import FitVerdict, surely_fitting_bytes
from simtrain.scenario import REASONS, Scenario
from simtrain.studies.search.explorer import Explorer, SearchOutcome
from simtrain.studies.search.legality import LegalPoints, legal_points, rules_on
from simtrain.studies.search.space import FIELDS, Point, Space
from simtrain.studies.search.words import as_options, num_gpus_in_words
from simtrain.units import UnitError, format_bytes, parse_bytes

_MIB = 2**20
_NEAR = 16
"""Numbers of GPUs to try below and above, to suggest one with a legal layout."""


class SearchStoppedError(DoesNotFitError):
    """A search was stopped before it found a layout that fits."""


def check_schedule(base: Scenario) -> None:
    """Refuse a schedule that is a file (E837)."""
    if base.schedule_file is not None:
        message = f"the schedule is the file {base.schedule}"
        reason = "a search changes the numbers of stages, chunks and microbatches; a file cannot"
        fix = "search with --set schedule=1f1b; then simulate the best layout with a file for it"
        place = base.positions.of_value(("schedule",))
        raise InputError.of("E837", message, place, fix, reason)


Degrees = Mapping[str, Sequence[int] | None]
"""Requested numbers of ranks, by coordinate."""


def as_list(gpus: int | Sequence[int]) -> Sequence[int]:
    """Return the numbers of GPUs as a list; a single number is a list of one."""
    return [gpus] if type(gpus) is int else gpus  # type: ignore[return-value]


def check_counts(
    gpus: Sequence[int], top: int, max_trials: int | None, workers: int, degrees: Degrees
) -> None:
    """Refuse counts that are not positive integers, and an empty list of numbers (E834)."""
    if not isinstance(gpus, Iterable) or isinstance(gpus, str | bytes):
        raise InputError.of("E834", f"gpus is {gpus!r}, not a list", fix=f"write gpus=[{gpus!s}]")
    trials = () if max_trials is None else (max_trials,)
    counts: dict[str, Sequence[object]] = {"gpus": tuple(gpus) or ((),), "top": (top,)}
    counts |= {"max_trials": trials, "workers": (workers,)}
    counts |= {name: numbers or ((),) for name, numbers in degrees.items() if numbers is not None}
    problems = [
        Problem("E834", f"{name} is {value!r}", fix="write a whole number of at least 1")
        for name, values in counts.items()
        for value in values
        if type(value) is not int or value < 1
    ]
    if problems:
        raise InputError(problems)


def check_degrees(space: Space, degrees: Degrees) -> None:
    """Refuse a number of ranks that is set both by --set and by its own option (E834)."""
    problems = [
        Problem(
            "E834",
            f"{FIELDS[name]} is set by --set and by --{name}",
            Location(f"--{name}"),
            fix=f"remove one of them: --{name} 4 alone searches 4, --{name} 1,2,4 all three",
        )
        for name, numbers in degrees.items()
        if numbers is not None and name in space.held
    ]
    if problems:
        raise InputError(problems)


def check_budget(seconds: float | None) -> None:
    """Refuse a time budget that is not a finite number above 0 (E834)."""
    is_number = type(seconds) in (int, float)
    if seconds is None or (is_number and 0 < seconds < math.inf):
        return
    fix = "write a number of seconds above 0, or remove it to search to the end"
    raise InputError.of("E834", f"seconds is {seconds!r}", Location("--seconds"), fix)


def check_alone(workers: int) -> None:
    """Refuse several workers for a search by proposals (E835)."""
    if workers > 1:
        raise InputError.of(
            "E835",
            f"a search with --trials cannot have {workers} workers",
            Location("--workers"),
            "remove --workers, or remove --trials to search every layout",
            "each proposal of --trials depends on the results of the proposals before it",
        )


def check_gpus(gpus: tuple[int, ...], profile: HardwareProfile, name: str) -> None:
    """Refuse numbers of GPUs that the cluster with this name or path does not have (E832)."""
    cluster = profile.cluster
    problems = [
        Problem(
            "E832",
            f"{number} GPUs are more than the {cluster.num_gpus} of {name} "
            f"({cluster.num_nodes.value} nodes of {cluster.gpus_per_node.value})",
            Location("--gpus"),
            reason="every rank of the job needs its own GPU",
            fix=f"write at most {cluster.num_gpus}, or name another cluster: --set cluster=NAME",
        )
        for number in gpus
        if number > cluster.num_gpus
    ]
    if problems:
        raise InputError(problems)


def less_margin(memory_bytes: int, margin: str | None) -> int:
    """Return the largest peak that leaves the margin free (E833)."""
    if margin is None:
        return memory_bytes
    place = Location("--margin")
    margin_bytes = _bytes_of(margin, place)
    if margin_bytes < memory_bytes:
        return memory_bytes - margin_bytes
    message = f"a margin of {margin} leaves nothing of {format_bytes(memory_bytes)}"
    raise InputError.of("E833", message, place, fix="write less, such as 4GiB")


def safe_peak(memory_bytes: int, limit_bytes: int, allow_risk: float | None) -> int:
    """Return the largest peak of a layout that may be the best (E834).

    Args:
        memory_bytes: memory of a GPU that may be used.
        limit_bytes: this without the margin.
        allow_risk: probability that a peak exceeds the memory; None for a peak that surely fits,
            unless there is a margin: it replaces the interval of the peak.
    """
    if allow_risk is None:
        has_margin = limit_bytes < memory_bytes
        return limit_bytes if has_margin else surely_fitting_bytes(memory_bytes)
    if type(allow_risk) not in (int, float) or not 0 <= allow_risk <= 1:
        message, place = f"allow_risk is {allow_risk!r}", Location("--allow-risk")
        raise InputError.of("E834", message, place, "write a probability from 0 to 1, such as 0.3")

    def risk(peak_bytes: int) -> float:
        """Probability that a peak exceeds the memory, which grows with the peak."""
        return 1 - FitVerdict(peak_bytes, memory_bytes).probability

    return bisect_right(range(1, limit_bytes + 1), allow_risk, key=risk)


def _bytes_of(written: str, place: Location) -> int:
    try:
        return parse_bytes(written)
    except UnitError as error:
        raise InputError.of("E833", str(error), place, fix=error.fix) from error


def highest_peak(written: str | None, profile: HardwareProfile, name: str) -> int:
    """Return --max-memory in bytes; by default, and at most, the GPU's capacity."""
    capacity_bytes, place = profile.gpu.memory_capacity.value, Location("--max-memory")
    if written is None:
        return capacity_bytes
    limit_bytes = _bytes_of(written, place)
    if limit_bytes <= capacity_bytes:
        return limit_bytes
    capacity = format_bytes(capacity_bytes)
    raise InputError.of(
        "E833",
        f"{written} is more than the {capacity} of a GPU of {name}",
        place,
        reason="a layout that needs more cannot run on this GPU",
        fix=f"write at most {capacity}, remove it, or name another cluster: --set cluster=NAME",
    )


def none_legal(space: Space, legal: LegalPoints, profile: HardwareProfile) -> InputError:
    """Build the error for a space without legal layouts.

    It counts the layouts that each rule removed and suggests numbers of GPUs.
    """
    gpus = num_gpus_in_words(space.gpus)
    reason = f"no tensor x pipeline x data x context with the fixed fields uses {gpus}"
    if legal.removed:
        reason = "rules removed" + "".join(
            f"\n    {code}, {number}: {REASONS[code]}"
            for code, number in legal.removed.most_common()
        )
    overridden = as_options(Point.of(space.base), sorted(space.held))
    fix = f"search on {_other_gpus(space, profile)}, or with another global batch"
    fix += f", or without --set {' --set '.join(overridden)}" if overridden else ""
    message = f"none of {legal.num_configurations} layouts on {gpus} is legal"
    return InputError.of("E831", message, reason=reason, fix=fix)


def _other_gpus(space: Space, profile: HardwareProfile) -> str:
    """Nearest numbers of GPUs, below and above, with a legal layout."""
    least, most = space.gpus[0], space.gpus[-1]
    below = range(least - 1, max(least - _NEAR, 1) - 1, -1)
    above = range(most + 1, min(most + _NEAR, profile.cluster.num_gpus) + 1)

    def has_legal(number: int) -> bool:
        return bool(legal_points(space.on((number,)), rules_on(profile)).points)

    nearest = (next(filter(has_legal, numbers), None) for numbers in (below, above))
    numbers = [number for number in nearest if number]
    return num_gpus_in_words(numbers) if numbers else "another number of GPUs"


def none_fits(
    explorer: Explorer, outcome: SearchOutcome, profile: HardwareProfile, num_legal: int
) -> DoesNotFitError:
    """Build the error for a space in which nothing fits: the smallest peak, and remedies.

    If no point could be evaluated, raise the error of one.
    """
    assert outcome.nearest is not None, "if nothing fits, one point has the smallest peak"
    if failure := explorer.failures.get(outcome.nearest):
        raise failure
    space, limit_bytes = explorer.space, explorer.limit_bytes
    peak_bytes = explorer.peak_bytes(outcome.nearest)
    ways = ["for longer"] if outcome.stopped else []
    ways += ["on more GPUs"] if max(space.gpus) < profile.cluster.num_gpus else []
    if profile.host_link is not None and not space.base.memory.offload_optimizer:
        ways.append("with --set memory.offload_optimizer=true")
    needed = math.ceil(peak_bytes / _MIB)
    if limit_bytes < needed * _MIB <= profile.gpu.memory_capacity.value:
        ways.append(f"with --max-memory {needed}MiB")
    ways.append("on a cluster whose GPUs have more memory")
    message = f"none of {outcome.num_seen} legal layouts"
    message += "" if outcome.exact else " that were evaluated"
    unseen = f"; {num_legal - outcome.num_seen} were not evaluated before the search stopped"
    kind = SearchStoppedError if outcome.stopped else DoesNotFitError
    return kind.of(
        "E830",
        f"{message} fits{unseen if outcome.stopped else ''}",
        reason=f"the smallest excess is {format_bytes(peak_bytes - limit_bytes)}: "
        f"{' '.join(as_options(outcome.nearest, space.axes))} needs {format_bytes(peak_bytes)} of "
        f"{format_bytes(limit_bytes)}",
        fix="search " + ", or ".join(ways),
    )
