"""What a search cannot answer, and what to ask instead."""

from __future__ import annotations

from simtrain.errors import DoesNotFitError, InputError, Location, Problem
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import RULES
from simtrain.search.legality import Legal
from simtrain.search.looker import Seen
from simtrain.search.space import FIELDS, Point, Space
from simtrain.strict_yaml.document import dotted
from simtrain.units import UnitError, format_bytes, parse_bytes


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
    """What the peaks may not exceed, in bytes: what is written, but at most what a GPU has.

    Raises:
        InputError: it is no amount of memory.
    """
    capacity_bytes = profile.gpu.memory_capacity.value
    if written is None:
        return capacity_bytes
    try:
        return min(parse_bytes(written), capacity_bytes)
    except UnitError as error:
        place = Location("--max-memory")
        raise InputError([Problem("E833", str(error), place, fix=error.fix)]) from error


def none_legal(space: Space, legal: Legal) -> InputError:
    """No configuration is legal: which rules removed how many of them."""
    reasons = {rule.code: rule.reason for rule in RULES}
    removed = [f"{code} {number} ({reasons[code]})" for code, number in legal.removed.most_common()]
    now = Point.of(space.base)
    held = [f"{dotted(FIELDS[name])}={_written(getattr(now, name))}" for name in sorted(space.held)]
    gpus = " or ".join(map(str, space.gpus))
    return InputError(
        [
            Problem(
                "E831",
                f"none of {legal.num_configurations} configurations on {gpus} GPUs is legal",
                reason="rules removed " + ", ".join(removed)
                if removed
                else f"no tensor x pipeline x data is {gpus} with what --set holds",
                fix="search on another number of GPUs, with another global batch"
                + (f", or without --set {' --set '.join(held)}" if held else ""),
            )
        ]
    )


def none_fits(seen: Seen, limit_bytes: int, *, exact: bool) -> DoesNotFitError:
    """No configuration fits: what misses least."""
    nearest = seen.nearest
    assert nearest is not None, "where nothing fits, something misses least"
    missing = seen.nearest_peak_bytes - limit_bytes
    those = f"{seen.num_seen} legal configurations" + ("" if exact else " that were looked at")
    return DoesNotFitError(
        [
            Problem(
                "E830",
                f"none of {those} fits",
                reason=f"the least that is missing is {format_bytes(missing)}: "
                f"{in_words(Point.of(nearest))} needs {format_bytes(seen.nearest_peak_bytes)} of "
                f"{format_bytes(limit_bytes)}",
                fix="search on more GPUs, with --set memory.offload_optimizer=true, or on a "
                "cluster whose GPUs have more memory",
            )
        ]
    )


def in_words(point: Point) -> str:
    """A point as options of `simtrain run`: parallelism.tensor=8 ..."""
    values = point._asdict().items()
    return " ".join(f"{dotted(FIELDS[name])}={_written(value)}" for name, value in values)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return getattr(value, "strategy", str(value))
