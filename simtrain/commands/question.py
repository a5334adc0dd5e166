"""The scenarios of a command, and what --set and --scale change in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from simtrain.commands.declare import Fields
from simtrain.commands.loading import load_scenario
from simtrain.commands.options import ScaleOption, ScenarioArgument, SetOption, SeveralScenarios
from simtrain.commands.printing import status

if TYPE_CHECKING:
    from simtrain.engine import Engine
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Question:
    """A scenario with changes.

    Args:
        scenario: its file or its name.
        overrides: assignments of --set.
        scale: factors of --scale.
    """

    scenario: ScenarioArgument
    overrides: SetOption = None
    scale: ScaleOption = None

    def load(self) -> Scenario:
        """Load and check the scenario; errors are those of `load_scenario`."""
        return load_scenario(self.scenario, all_overrides(self.overrides, self.scale))


@dataclass(frozen=True, slots=True)
class Questions:
    """Several scenarios with the same changes.

    Args:
        scenarios: their files or names.
        overrides: assignments of --set.
        scale: factors of --scale.
    """

    scenarios: Annotated[list[str], SeveralScenarios]
    overrides: SetOption = None
    scale: ScaleOption = None

    @property
    def settings(self) -> list[str]:
        """What --set and --scale assign."""
        return all_overrides(self.overrides, self.scale)

    def load(self) -> list[Scenario]:
        """Load and check the scenarios; errors are those of `load_scenario`."""
        return [load_scenario(scenario, self.settings) for scenario in self.scenarios]


UnscaledQuestion = Annotated[Question, Fields(Question, "scenario overrides")]
"""A question of a command without --scale."""


def as_words(option: str, values: Sequence[str] | None) -> list[str]:
    """Return the words of a command line with an option for each value."""
    return [word for value in values or () for word in (option, value)]


def all_overrides(overrides: list[str] | None, scale: list[str] | None) -> list[str]:
    """Return the overrides of --set, and those that stand for --scale.

    Raises:
        InputError: --scale names no resource, or its factor is not a number above 0 (E208).
    """
    from simtrain.hardware.scaling import scale_overrides

    return [*(overrides or ()), *scale_overrides(scale or ())]


def simulate_with_status(scenario: Scenario, allow_oom: bool, engine: Engine = "auto") -> Result:
    """Simulate a scenario while a status line is shown.

    Raises:
        DoesNotFitError: the scenario does not fit in memory, and `allow_oom` is false.
    """
    from simtrain.studies.simulation import simulate, simulate_fitting

    with status(f"simulating {scenario.name}") as show_status:
        if allow_oom:
            return simulate(scenario, engine=engine)
        return simulate_fitting(scenario, show_status, engine)
