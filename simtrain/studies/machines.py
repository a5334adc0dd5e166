"""Machines of scenarios: hardware profiles with the durations that were computed on them."""

from __future__ import annotations

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine
from simtrain.hardware.load import profile_of, profile_version
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import Scenario

_MOST = 16


class Machines:
    """Caches the machines of the last 16 profiles, so that scenarios share durations."""

    def __init__(self) -> None:
        self._machines: dict[object, Machine] = {}

    def of(self, scenario: Scenario, engine: Engine) -> Machine:
        """Return the machine of a scenario's profile with its overrides.

        Raises:
            InputError: the profile does not exist or is invalid.
        """
        overrides = repr(scenario.hardware) if scenario.hardware else ""
        # The version changes with the file, so that a profile is read again.
        key = engine, scenario.cluster, overrides, profile_version(scenario)
        if key not in self._machines:
            if len(self._machines) == _MOST:
                del self._machines[next(iter(self._machines))]
            self._machines[key] = Machine(DurationModel(profile_of(scenario)), engine)
        return self._machines[key]

    def forget(self) -> None:
        """Drop all machines, to bound the memory of a study of many scenarios."""
        self._machines.clear()


SHARED = Machines()
"""The machines of all simulations of this process."""
