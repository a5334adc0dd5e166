"""Text for points and numbers of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from simtrain.base.strict_yaml import as_scalar
from simtrain.scenario import RecomputePolicy
from simtrain.schedules import default_name
from simtrain.studies.search.space import FIELDS, Point


def num_gpus_in_words(numbers: Sequence[int]) -> str:
    """Format numbers of GPUs: "1 GPU", "8 or 16 GPUs"."""
    return f"{' or '.join(map(str, numbers))} GPU{'' if list(numbers) == [1] else 's'}"


def as_options(point: Point, names: Iterable[str]) -> list[str]:
    """Format coordinates of a point as arguments of `simtrain run --set`, quoted for a shell."""
    return [quote(f"{FIELDS[name]}={_written(getattr(point, name))}") for name in names]


def setting_in_words(field: str, value: object) -> str:
    """Format a field and its value as an argument of --set."""
    return f"{field}={_written(value)}"


def in_words(fields: Sequence[str]) -> str:
    """List fields without their sections: "tensor, pipeline, ZeRO stage"."""
    names = (field.rpartition(".")[2].replace("_", " ") for field in fields)
    return ", ".join(name.replace("zero", "ZeRO") for name in names)


def shortened(fields: Sequence[str], most: int = 3) -> list[str]:
    """List the first fields without their sections, and the number of the others."""
    names = [in_words([field]) for field in fields[:most]]
    return names + ([f"{len(fields) - most} more"] if len(fields) > most else [])


def in_short(point: Point) -> str:
    """Format a point for the progress bar: "4 x 16 x 8, interleave 3, micro 2, recompute full"."""
    parts = [f"{point.tensor} x {point.pipeline} x {point.data}"]
    parts += [f"context {point.context}"] if point.context > 1 else []
    parts += [f"expert {point.expert}"] if point.expert > 1 else []
    parts += [f"interleave {point.interleave}"] if point.interleave > 1 else []
    is_default = point.schedule == default_name(point.interleave)
    parts += [] if is_default else [point.schedule]
    parts += [f"micro {point.micro}"]
    parts += ["sequence parallel"] if point.sequence_parallel else []
    parts += [f"ZeRO {point.zero_stage}"] if point.zero_stage else []
    return ", ".join([*parts, f"recompute {point.recompute.strategy}"])


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if not isinstance(value, RecomputePolicy):
        return as_scalar(value)
    details = value.model_dump(exclude_defaults=True, exclude={"strategy"})
    if not details:
        return value.strategy
    spelled = {"strategy": value.strategy} | details
    return f"{{{', '.join(f'{name}: {_written(detail)}' for name, detail in spelled.items())}}}"
