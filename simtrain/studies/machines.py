"""Machines of scenarios: hardware profiles with the durations that were computed on them."""

from __future__ import annotations

from dataclasses import dataclass

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
        key = _key(scenario, engine)
        if key not in self._machines:
            if len(self._machines) == _MOST:
                del self._machines[next(iter(self._machines))]
            self._machines[key] = Machine.of(profile_of(scenario), engine)
        return self._machines[key]


@dataclass(frozen=True, slots=True)
class OneMachine:
    """The same machine for every scenario, also if its profile is not that of their cluster."""

    machine: Machine

    def of(self, scenario: Scenario, engine: Engine) -> Machine:
        """Return the machine."""
        return self.machine


def _key(scenario: Scenario, engine: Engine) -> object:
    overrides = repr(scenario.hardware) if scenario.hardware else ""
    # The version changes with the file, so that a profile is read again.
    return engine, scenario.cluster, overrides, profile_version(scenario)
