"""The scenarios of a command, what --set and --scale change in them, and options of imports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from simtrain.base.importer import ImportRequest, importer_of_file
from simtrain.base.registered import registered
from simtrain.base.values import dataclass, field, replace
from simtrain.commands.declare import Fields, Option
from simtrain.commands.options import SCENARIO, ScenarioArgument, SetOption, refuse
from simtrain.commands.printing import status
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.hardware.likeness import OwnRun
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario


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


_VARIABLE = "A variable of a script that the script does not decide. May be repeated."
_IMPORT_FORMS = {
    "gpus": Option(min=1),
    "env": Option(help=_VARIABLE, metavar="VAR=VALUE", parse=read_variables, is_repeated=True),
}


def import_fields(names: str) -> Fields:
    """Return the mark of a parameter that has options for these fields of `ImportRequest`."""
    return Fields(ImportRequest, names, _IMPORT_FORMS)


ImportFields = Annotated[dict[str, Any], import_fields("env model ignore_unknown capture")]
"""What the file of another tool leaves open."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a command changes in its scenarios.

    Args:
        overrides: assignments of --set.
        gpus: number of GPUs: replicas are added or removed, and the global batch stays.
        scale_batch: with --gpus, the global batch grows by the same factor.
        imports: what the files of other tools leave open.
    """

    overrides: SetOption = None
    gpus: Annotated[int | None, Option(min=1)] = None
    scale_batch: bool = False
    imports: ImportFields = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The words of a command line that makes the same changes."""
        words = [word for value in self.overrides or () for word in ("--set", value)]
        words += ["--gpus", str(self.gpus)] if self.gpus else []
        return words + ["--scale-batch"] * self.scale_batch


@dataclass(frozen=True, slots=True)
class Question:
    """A scenario with changes.

    Args:
        scenario: its file or its name.
        changes: what is changed in it.
    """

    scenario: ScenarioArgument
    changes: Changes = Changes()

    @property
    def _request(self) -> ImportRequest:
        settings = self.changes.overrides or ()
        return ImportRequest(self.scenario, overrides=settings, **self.changes.imports)

    @property
    def words(self) -> list[str]:
        return [self.scenario, *self.changes.words]

    def changed(self, more: list[str]) -> Question:
        """Return the question with more assignments of fields, after those that it has."""
        settings = [*(self.changes.overrides or ()), *more]
        return Question(self.scenario, replace(self.changes, overrides=settings))

    def load(self) -> Scenario:
        """Load and check the scenario, or import it; errors are those of both."""
        from simtrain.scenario import check_scenario

        gpus, scale_batch = self.changes.gpus, self.changes.scale_batch
        if gpus is None:
            refuse({"--scale-batch": scale_batch}, "is for --gpus", "add --gpus N")
        scenario = self._scenario(gpus, scale_batch)
        check_scenario(scenario)
        return scenario

    def load_unchecked(self) -> Scenario:
        """Load or import a scenario whose layout is to be chosen, without checking it."""
        return self._scenario(is_layout_open=True)

    def _scenario(
        self, gpus: int | None = None, scale_batch: bool = False, is_layout_open: bool = False
    ) -> Scenario:
        from simtrain.scenario import load_unchecked
        from simtrain.studies.changes import with_gpus

        request = self._request
        if importer := importer_of_file(request.source):
            load_imported = registered("load_imported")
            imported: Scenario = load_imported(importer, request, gpus, scale_batch, is_layout_open)
            return imported
        request.check_read_by(None)
        return with_gpus(load_unchecked(request.file, request.overrides), gpus, scale_batch)


@dataclass(frozen=True, slots=True)
class Questions:
    """Several scenarios with the same changes.

    Args:
        scenarios: their files or names.
        changes: what is changed in each.
    """

    scenarios: Annotated[list[str], SCENARIO]
    changes: Changes = Changes()

    def each(self) -> list[Question]:
        """Return a question for each scenario."""
        return [Question(scenario, self.changes) for scenario in self.scenarios]


SearchQuestion = Annotated[
    Question,
    Fields(
        Question,
        "scenario changes",
        {"changes": Annotated[Changes, Fields(Changes, "overrides scale_batch imports")]},
    ),
]
"""A question of a command that searches layouts for --gpus."""


def read_measured(
    measured: SetOption, scenario: Scenario, overrides: SetOption
) -> tuple[OwnRun, ...]:
    """Simulate the runs of --measured while a status line is shown; errors are those of both."""
    if not measured:
        return ()
    from simtrain.studies.anchors import own_runs

    with status("simulating the measured runs"):
        return own_runs(measured, lambda file: Question(file).load(), scenario, overrides or ())


def simulate_with_status(
    scenario: Scenario, allow_oom: bool, anchors: Sequence[OwnRun] = ()
) -> Result:
    """Simulate a scenario while a status line is shown; one's own runs anchor its interval.

    Raises:
        DoesNotFitError: the scenario does not fit in memory, and `allow_oom` is false.
    """
    from simtrain.studies.advice import simulate_fitting
    from simtrain.studies.simulation import simulate

    with status(f"simulating {scenario.name}") as show_status:
        result = simulate(scenario) if allow_oom else simulate_fitting(scenario, show_status)
    return replace(result, anchors=anchors) if anchors else result
