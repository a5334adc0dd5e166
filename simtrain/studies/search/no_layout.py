"""Errors of a search without a layout: none is legal, or none fits."""

from __future__ import annotations

import math

from simtrain.errors import DoesNotFitError, InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import REASONS
from simtrain.studies.search.explorer import Explorer, SearchOutcome
from simtrain.studies.search.layout_words import as_options, num_gpus_in_words
from simtrain.studies.search.legality import LegalPoints, legal_points, rules_on
from simtrain.studies.search.space import Point, Space
from simtrain.units import format_bytes

_MIB = 2**20
_NEAR = 16
"""Numbers of GPUs to try below and above, to suggest one with a legal layout."""


class SearchStoppedError(DoesNotFitError):
    """A search was stopped before it found a layout that fits."""


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
