"""The scenarios of a command, what --set and --scale change in them, and options of imports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.base.importer import ImportRequest
from simtrain.commands.declare import Fields, Written
from simtrain.commands.loading import load_scenario, load_unchecked
from simtrain.commands.options import ScaleOption, ScenarioArgument, SetOption, SeveralScenarios
from simtrain.commands.printing import status
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.engine import Engine
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario


_PANEL = "Files of other tools"
_IMPORT_OPTION = typer.Option(rich_help_panel=_PANEL)


def read_variables(texts: list[str], option: str) -> dict[str, str]:
    """Parse variables with their values, such as "NNODES=4".

    Raises:
        InputError: a text is not VAR=VALUE (E883).
    """
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            message = "is not a variable with its value"
            fix = f"write the name and the value of a variable: {option} NNODES=4"
            raise InputError.of("E883", message, Location(f"{option} {text}"), fix)
        variables[name] = value
    return variables


_IMPORT_FORMS = {
    "gpus": Annotated[int | None, typer.Option(min=1, rich_help_panel=_PANEL)],
    "env": Annotated[
        dict[str, str] | None,
        typer.Option(
            metavar="VAR=VALUE",
            help="Value of a variable of a script, where the script does not decide it. May be "
            "repeated.",
            rich_help_panel=_PANEL,
        ),
        Written(read_variables, list[str]),
    ],
    "model": Annotated[str, _IMPORT_OPTION],
    "config": Annotated[str, _IMPORT_OPTION],
    "ignore_unknown": Annotated[bool, _IMPORT_OPTION],
    "capture": Annotated[bool, _IMPORT_OPTION],
}


def import_fields(names: str) -> Fields:
    """Return the mark of a parameter that has options for these fields of `ImportRequest`."""
    return Fields(ImportRequest, names, _IMPORT_FORMS)


IMPORT_NAMES = "env model config ignore_unknown capture"
ImportFields = Annotated[dict[str, Any], import_fields(f"gpus {IMPORT_NAMES}")]
"""What the file of another tool leaves open."""


@dataclass(frozen=True, slots=True)
class Question:
    """A scenario with changes.

    Args:
        scenario: its file or its name.
        overrides: assignments of --set.
        scale: factors of --scale.
        imports: what the file of another tool leaves open.
    """

    scenario: ScenarioArgument
    overrides: SetOption = None
    scale: ScaleOption = None
    imports: ImportFields = field(default_factory=dict)

    @property
    def _request(self) -> ImportRequest:
        settings = all_overrides(self.overrides, self.scale)
        return ImportRequest(self.scenario, overrides=settings, **self.imports)

    @property
    def words(self) -> list[str]:
        settings = all_overrides(self.overrides, self.scale)
        return [self.scenario, *as_words("--set", settings)]

    def changed(self, changes: list[str]) -> Question:
        """Return the question with more changes, after those of --set and --scale."""
        settings = all_overrides(self.overrides, self.scale)
        return Question(self.scenario, [*settings, *changes], imports=self.imports)

    def load(self) -> Scenario:
        """Load and check the scenario; errors are those of `load_scenario`."""
        return load_scenario(self._request)

    def load_unchecked(self) -> Scenario:
        """Load a scenario whose layout is to be chosen; errors are those of `load_unchecked`."""
        return load_unchecked(self._request)


@dataclass(frozen=True, slots=True)
class Questions:
    """Several scenarios with the same changes.

    Args:
        scenarios: their files or names.
        overrides: assignments of --set.
        scale: factors of --scale.
        imports: what files of other tools leave open.
    """

    scenarios: Annotated[list[str], SeveralScenarios]
    overrides: SetOption = None
    scale: ScaleOption = None
    imports: ImportFields = field(default_factory=dict)

    @property
    def settings(self) -> list[str]:
        return all_overrides(self.overrides, self.scale)

    def each(self) -> list[Question]:
        """Return a question for each scenario."""
        return [
            Question(scenario, self.overrides, self.scale, self.imports)
            for scenario in self.scenarios
        ]

    def load(self) -> list[Scenario]:
        """Load and check the scenarios; errors are those of `load_scenario`."""
        return [question.load() for question in self.each()]


UnscaledQuestion = Annotated[Question, Fields(Question, "scenario overrides imports")]
"""A question of a command without --scale."""
SearchQuestion = Annotated[
    Question,
    Fields(
        Question,
        "scenario overrides scale imports",
        {"imports": Annotated[dict[str, Any], import_fields(IMPORT_NAMES)]},
    ),
]
"""A question of a command whose --gpus are not those of an import."""


def as_words(option: str, values: Sequence[str] | None) -> list[str]:
    """Return the words of a command line with an option for each value."""
    return [word for value in values or () for word in (option, value)]


def all_overrides(overrides: list[str] | None, scale: list[str] | None) -> list[str]:
    """Return the overrides of --set, and those that stand for --scale.

    Raises:
        InputError: --scale names no resource, or its factor is not a number above 0 (E208).
    """
    from simtrain.hardware.upgrades import scale_overrides

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
