"""Rebuild the scenarios of a sweep's points from its results folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from simtrain.base.input_file import read_bytes
from simtrain.base.resources import profile_sha256
from simtrain.errors import InputError
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep.folder import MOST_BYTES_OF_PLAN, PLAN_FILE
from simtrain.studies.sweep.plan import SweepPlan


@dataclass(frozen=True)
class RecordedSweep:
    """The plan that a folder's sweep.json has."""

    plan: SweepPlan
    _evaluator: Evaluator = field(default_factory=Evaluator, repr=False)

    @classmethod
    def of(cls, folder: Path) -> RecordedSweep | None:
        """Read a folder's sweep.json; None if there is none that can be read."""
        try:
            content = read_bytes(folder / PLAN_FILE, MOST_BYTES_OF_PLAN)
            return cls(SweepPlan.from_json(json.loads(content)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def extrapolated_compute(self, index: int) -> float | None:
        """Return the share of a point's kernel time for shapes outside the fitted range.

        None if the profile's file has changed since the sweep ran, or if the point cannot be
        simulated any more.
        """
        scenario = self.plan.scenario(index)
        try:
            if self.plan.profiles.get(scenario.cluster) != profile_sha256(scenario.cluster):
                return None
            return self._evaluator.extrapolated_compute(scenario)
        except (InputError, OSError):
            return None
