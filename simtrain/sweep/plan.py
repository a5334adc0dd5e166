"""A sweep, ready to run: which scenario stands at each point of its grid.

The grid is the product of the axes, the first one slowest, and is never held: a point is computed
from its index. Parts are ranges of indices, so that a part is the same whoever runs it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any

from simtrain.errors import Location
from simtrain.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.strict_yaml import Path, Positions, validate
from simtrain.sweep.axes import Axis, Cell, cell
from simtrain.sweep.constraints import Constraint, Number, read_constraint
from simtrain.sweep.fields import BASE, Assignment
from simtrain.version import VERSION

# Columns that every table has, and those that a file may ask for.
FIXED_COLUMNS = ("index", "status", "rule")
BREAKDOWN = tuple(f"breakdown_{field.name}" for field in fields(Breakdown))
REPORTABLE = (
    *("iteration_time_s", "tokens_per_s", "mfu", "hfu"),
    *("peak_bytes", "capacity_bytes", "num_gpus", *BREAKDOWN),
)
OBJECTIVES = tuple(name for name in REPORTABLE if name != "capacity_bytes")
# Parts small enough to be shared out, and to be lost; large enough to be worth a file.
_FEWEST_POINTS, _MOST_POINTS, _PARTS_WANTED = 16, 1000, 100


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep with all that it needs: scenarios to start from, axes, constraints, columns.

    `bases` are scenario files' data by name, and `base` is the one to start from where no axis
    says otherwise. `objective` is the column by which points are compared. `profiles` are digests
    of the clusters' profile files, and `versions` those of the programs: other figures or other
    code would give other results. `places` is where each constraint was written, if it was.
    """

    name: str
    description: str | None
    base: str
    bases: Mapping[str, Mapping[str, Any]]
    constants: Mapping[str, Number]
    axes: tuple[Axis, ...]
    constraints: tuple[str, ...]
    report: tuple[str, ...]
    objective: str
    profiles: Mapping[str, str]
    versions: Mapping[str, str]
    part_size: int
    places: tuple[Location | None, ...] = ()

    @property
    def num_points(self) -> int:
        """Points of the grid, those that constraints exclude too."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def num_parts(self) -> int:
        """Parts of `part_size` points; the last may have fewer."""
        return -(-self.num_points // self.part_size)

    def indices(self, part: int) -> range:
        """The points of a part."""
        start = part * self.part_size
        return range(start, min(start + self.part_size, self.num_points))

    def positions(self, index: int) -> tuple[int, ...]:
        """Where on each axis a point is."""
        found = []
        for axis in reversed(self.axes):
            index, position = divmod(index, len(axis))
            found.append(position)
        return tuple(reversed(found))

    def cells(self, index: int) -> dict[str, Cell]:
        """What the axes' columns hold at a point."""
        places = zip(self.axes, self.positions(index), strict=True)
        return {axis.name: cell(axis, position) for axis, position in places}

    def scenario(self, index: int) -> Scenario:
        """The scenario at a point; whether it is legal has not been looked at."""
        places = zip(self.axes, self.positions(index), strict=True)
        set_here = [one for axis, position in places for one in axis.assignments(position)]
        base = next((value for path, value in set_here if path == BASE), self.base)
        laid = [one for one in set_here if one[0] != BASE]
        return validate(Scenario, _laid_over(self.bases[base], laid), Positions())

    def readable_constraints(self) -> tuple[Constraint, ...]:
        """The constraints, ready to be asked; functions, which no other process can be sent."""
        return tuple(read_constraint(text, self.constants) for text in self.constraints)

    def identity(self) -> dict[str, Any]:
        """All that decides about the results, as JSON."""
        return {
            "base": self.base,
            "bases": self.bases,
            "constants": self.constants,
            "axes": {axis.name: axis.to_json() for axis in self.axes},
            "constraints": self.constraints,
            "report": self.report,
            "objective": self.objective,
            "profiles": self.profiles,
            "versions": self.versions,
        }

    @property
    def digest(self) -> str:
        """A digest of what decides about the results; how they are cut into parts does not."""
        text = json.dumps(self.identity(), sort_keys=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The plan as sweep.json holds it."""
        return {
            "name": self.name,
            "description": self.description,
            "hash": self.digest,
            "num_points": self.num_points,
            "num_parts": self.num_parts,
            "part_size": self.part_size,
            **self.identity(),
        }


def _laid_over(data: Mapping[str, Any], assignments: Sequence[Assignment]) -> dict[str, Any]:
    """A copy of nested data with these values set; what is beside their paths is shared."""
    result = dict(data)
    copied: dict[Path, dict[str, Any]] = {(): result}
    for path, value in assignments:
        inside = result
        for depth in range(1, len(path)):
            here, key = path[:depth], str(path[depth - 1])
            if here not in copied:
                copied[here] = inside[key] = dict(inside.get(key) or {})
            inside = copied[here]
        inside[str(path[-1])] = value
    return result


def versions() -> dict[str, str]:
    """The versions of the programs here that decide about the bytes of a part."""
    return {"simtrain": VERSION, "pyarrow": metadata.version("pyarrow")}


def version_words(versions: Mapping[str, str]) -> str:
    """Versions as messages name them: "simtrain 0.1.0, pyarrow 18.0.0"."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def default_part_size(num_points: int) -> int:
    """Points in a part where nobody says: about a hundred parts, of 16 to 1000 points."""
    return min(_MOST_POINTS, max(_FEWEST_POINTS, -(-num_points // _PARTS_WANTED)))
