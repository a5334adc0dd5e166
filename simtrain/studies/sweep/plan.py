"""The plan of a sweep: the scenario at each point of its grid.

The grid is the product of the axes, the first axis slowest. It is never stored: each point is
computed from its index. Parts are ranges of indices, so a part is the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from simtrain.base.strict_yaml import Positions, validate, with_value
from simtrain.errors import Location
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.scenario import Scenario
from simtrain.studies.cost import COST_COLUMNS
from simtrain.studies.objectives import registry
from simtrain.studies.sweep.axes import Cell, SweepAxis, cell
from simtrain.studies.sweep.fields import BASE, Assignment, base_of

Number = int | float
# Columns of every table, and columns that a sweep file may select.
FIXED_COLUMNS = ("index", "status", "rule")
BREAKDOWN = tuple(f"breakdown_{field.name}" for field in fields(Breakdown))
REPORTED_BY_DEFAULT = (
    *("iteration_time_s", "tokens_per_s", "mfu", "hfu"),
    *("peak_bytes", "capacity_bytes", "num_gpus", *BREAKDOWN),
)
_OF_SEARCHES = tuple(objective.field for objective in registry.OBJECTIVES.values())
REPORTABLE = tuple(dict.fromkeys((*REPORTED_BY_DEFAULT, *COST_COLUMNS, *_OF_SEARCHES)))
OBJECTIVES = tuple(name for name in REPORTABLE if name != "capacity_bytes")
# Parts are small enough to share and to lose, and large enough to be worth a file.
_FEWEST_POINTS, _MOST_POINTS, _PARTS_WANTED = 16, 1000, 100


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything that determines a sweep's results.

    Args:
        base: the name of the default base scenario.
        name: the name of the sweep.
        bases: the data of all base scenarios by name.
        constants: named numbers that constraints use.
        report: columns of the results.
        objective: the column by which points are compared.
        profiles: SHA-256 of each cluster's profile, by name.
        versions: versions of simtrain and pyarrow, which affect a part's bytes.
        part_size: points per part.
        overrides: the --set options, already applied to `bases`.
        places: position of each constraint in the sweep file.
    """

    name: str
    description: str | None
    base: str
    bases: Mapping[str, Mapping[str, Any]]
    constants: Mapping[str, Number]
    axes: tuple[SweepAxis, ...]
    constraints: tuple[str, ...]
    report: tuple[str, ...]
    objective: str
    profiles: Mapping[str, str]
    versions: Mapping[str, str]
    part_size: int
    overrides: tuple[str, ...] = ()
    places: tuple[Location | None, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SweepPlan:
        """Read the output of `to_json`, which lacks the places of the constraints.

        Raises:
            KeyError, TypeError: a field is missing or invalid.
        """
        axes = tuple(SweepAxis.from_json(name, values) for name, values in data["axes"].items())
        names = {field.name for field in fields(cls)} - {"axes", "places"}
        return cls(axes=axes, **{name: data[name] for name in names})

    @property
    def has_costs(self) -> bool:
        """Whether a column or the objective is a cost."""
        return any(name in COST_COLUMNS for name in (*self.report, self.objective))

    @property
    def num_points(self) -> int:
        """Points of the grid, including excluded ones."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def num_parts(self) -> int:
        """Number of parts; the last one may have fewer points."""
        return -(-self.num_points // self.part_size)

    def indices(self, part: int) -> range:
        """The indices of a part's points."""
        start = part * self.part_size
        return range(start, min(start + self.part_size, self.num_points))

    def positions(self, index: int) -> tuple[int, ...]:
        """The position of a point on each axis."""
        positions = []
        for axis in reversed(self.axes):
            index, position = divmod(index, len(axis))
            positions.append(position)
        return tuple(reversed(positions))

    def cells(self, index: int) -> dict[str, Cell]:
        """The axes' values at a point, by column."""
        places = zip(self.axes, self.positions(index), strict=True)
        return {axis.name: cell(axis, position) for axis, position in places}

    def scenario(self, index: int) -> Scenario:
        """The scenario at a point; its legality is not checked."""
        settings = self.settings(index)
        data = self.bases[base_of(settings, self.base)]
        for path, value in settings:
            data = data if path == BASE else with_value(data, path, value, None)
        return validate(Scenario, data, Positions())

    def settings(self, index: int) -> list[Assignment]:
        """What the axes set at a point: fields, and its base."""
        places = zip(self.axes, self.positions(index), strict=True)
        return [setting for axis, position in places for setting in axis.assignments(position)]

    def identity(self) -> dict[str, Any]:
        """Everything that determines the results, as JSON."""
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
        """SHA-256 of `identity`; the part size is not included."""
        text = json.dumps(self.identity(), sort_keys=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON, for sweep.json."""
        return {
            "name": self.name,
            "description": self.description,
            "overrides": self.overrides,
            "hash": self.digest,
            "num_points": self.num_points,
            "num_parts": self.num_parts,
            "part_size": self.part_size,
            **self.identity(),
        }


def default_part_size(num_points: int) -> int:
    """Default points per part: about a hundred parts, of 16 to 1,000 points each."""
    return min(_MOST_POINTS, max(_FEWEST_POINTS, -(-num_points // _PARTS_WANTED)))
