"""Rebuild the scenarios of a sweep's points from its results folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from simtrain.errors import InputError
from simtrain.evaluation import Evaluator
from simtrain.resources import find_profile
from simtrain.scenario import Scenario
from simtrain.strict_yaml import Positions, validate, with_value
from simtrain.sweep.fields import BASE, Assignment, leaves
from simtrain.sweep.folder import PLAN_FILE


@dataclass(frozen=True)
class RecordedSweep:
    """The base scenarios, axes and profiles that a folder's sweep.json has."""

    base: str
    bases: Mapping[str, Mapping[str, Any]]
    axes: Mapping[str, Any]
    profiles: Mapping[str, str]
    _evaluator: Evaluator = field(default_factory=Evaluator, repr=False)

    @classmethod
    def of(cls, folder: Path) -> RecordedSweep | None:
        """Read a folder's sweep.json; None if there is none that can be read."""
        try:
            known = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
            return cls(known["base"], known["bases"], known["axes"], known["profiles"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def point(self, index: int) -> dict[str, Any]:
        """Return what a point is: base, settings, profile, and the extrapolated share of its time.

        The share is None if the profile's file has changed since the sweep ran, or if the point
        cannot be simulated any more.
        """
        scenario, settings = self._scenario(index)
        return {
            "base": next((value for path, value in settings if path == BASE), self.base),
            "settings": {".".join(map(str, path)): value for path, value in settings},
            "profile": scenario.cluster,
            "extrapolated_compute": self._extrapolated(scenario),
        }

    def _scenario(self, index: int) -> tuple[Scenario, list[Assignment]]:
        """Rebuild the scenario of a point; the first axis is the slowest."""
        settings: list[Assignment] = []
        slower = math.prod(map(_length, self.axes.values()))
        for name, values in self.axes.items():
            slower //= _length(values)
            position, index = divmod(index, slower)
            settings += _assignments(name, values, position)
        base = next((value for path, value in settings if path == BASE), self.base)
        data = self.bases[base]
        for path, value in settings:
            data = data if path == BASE else with_value(data, path, value, None)
        return validate(Scenario, data, Positions()), settings

    def _extrapolated(self, scenario: Scenario) -> float | None:
        try:
            digest = sha256(find_profile(scenario.cluster).read_bytes()).hexdigest()
            if self.profiles.get(scenario.cluster) != digest:
                return None
            return self._evaluator.extrapolated_compute(scenario)
        except (InputError, OSError):
            return None


def _length(values: Any) -> int:
    if isinstance(values, dict) and isinstance(values.get("range"), list):
        start, last, step = values["range"]
        return len(range(start, last + 1, step))
    return len(values)


def _assignments(name: str, values: Any, position: int) -> tuple[Assignment, ...]:
    """Return the fields that a position on an axis sets (`Axis.to_json`)."""
    path = tuple(name.split("."))
    if isinstance(values, list):
        return leaves(path, values[position])
    if isinstance(values.get("range"), list):
        start, _, step = values["range"]
        return ((path, start + position * step),)
    group = list(values.values())[position]
    return tuple((tuple(field.split(".")), value) for field, value in group.items())
