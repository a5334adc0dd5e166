"""A sweep's name, objective, profiles and version, read from its sweep.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simtrain.base.input_file import read_bytes
from simtrain.base.version import VERSION
from simtrain.studies.sweep.folder import MOST_BYTES_OF_PLAN, PLAN_FILE


@dataclass(frozen=True, slots=True)
class SweepHeader:
    """Facts about a sweep that its table does not contain.

    Args:
        name: the sweep's name; the folder's name if sweep.json is missing.
        objective: the column by which the sweep compares points.
        named_axes: axes whose values the sweep file defines by name.
        profiles: SHA-256 of each hardware profile's file, by name.
        version: the version of simtrain that computed the results.
        overrides: fields of the base scenarios that --set changed, such as "batch.micro=2".
    """

    name: str
    objective: str | None = None
    named_axes: frozenset[str] = frozenset()
    profiles: Mapping[str, str] = field(default_factory=dict)
    version: str = VERSION
    overrides: tuple[str, ...] = ()


def read_header(folder: Path) -> SweepHeader:
    """Read sweep.json; if it is missing or damaged, return a header with the folder's name only."""
    try:
        plan = json.loads(read_bytes(folder / PLAN_FILE, MOST_BYTES_OF_PLAN))
        return SweepHeader(
            str(plan["name"]),
            plan["objective"],
            frozenset(name for name, values in plan["axes"].items() if isinstance(values, dict)),
            {str(name): str(digest) for name, digest in plan["profiles"].items()},
            str(plan["versions"]["simtrain"]),
            tuple(map(str, plan.get("overrides", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return SweepHeader(folder.resolve().name)
