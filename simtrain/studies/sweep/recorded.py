"""Rebuild the scenarios of a sweep's points from its results folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simtrain.base.provenance import profile_sha256
from simtrain.base.strict_yaml.document import dotted
from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep.fields import base_of
from simtrain.studies.sweep.folder import PLAN_FILE
from simtrain.studies.sweep.plan import Plan


@dataclass(frozen=True)
class RecordedSweep:
    """The plan that a folder's sweep.json has."""

    plan: Plan
    _evaluator: Evaluator = field(default_factory=Evaluator, repr=False)

    @classmethod
    def of(cls, folder: Path) -> RecordedSweep | None:
        """Read a folder's sweep.json; None if there is none that can be read."""
        try:
            text = (folder / PLAN_FILE).read_text(encoding="utf-8")
            return cls(Plan.from_json(json.loads(text)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def point(self, index: int) -> dict[str, Any]:
        """Return what a point is: base, settings, profile, and the extrapolated share of its time.

        The share is None if the profile's file has changed since the sweep ran, or if the point
        cannot be simulated any more.
        """
        settings, scenario = self.plan.settings(index), self.plan.scenario(index)
        return {
            "base": base_of(settings, self.plan.base),
            "settings": {dotted(path): value for path, value in settings},
            "profile": scenario.cluster,
            "extrapolated_compute": self._extrapolated(scenario),
        }

    def _extrapolated(self, scenario: Scenario) -> float | None:
        try:
            if self.plan.profiles.get(scenario.cluster) != profile_sha256(scenario.cluster):
                return None
            return self._evaluator.extrapolated_compute(scenario)
        except (InputError, OSError):
            return None
