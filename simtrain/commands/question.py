"""The scenarios of a command, and what --set and --scale change in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from simtrain.commands.declare import Fields
from simtrain.commands.loading import load_scenario
from simtrain.commands.shared import (
    ScaleOption,
    ScenarioArgument,
    SetOption,
    SeveralScenarios,
    all_overrides,
)

if TYPE_CHECKING:
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
