"""What `simtrain export` writes: an object per framework.

Scenarios are imported in functions or for types only: `--help` lists the exporters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from simtrain.base.plug_ins import Parts
from simtrain.errors import InputError, Location, did_you_mean, printable

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class Exporter(ABC):
    """Writes a scenario as a framework reads it."""

    name: ClassVar[str]
    """The framework in `simtrain export --to NAME`, and the importer that reads its text."""
    ending: ClassVar[str] = ""
    """The ending of files for which it is the default."""

    @abstractmethod
    def write(self, scenario: Scenario) -> str:
        """Return the text from which the importer of this name makes a scenario again.

        Comments list the fields that the framework cannot say (`lost_fields`). A scenario that the
        framework cannot run is an `InputError`.
        """


EXPORTERS = Parts[Exporter]("exporters", Exporter, ())
"""All exporters, found by their entry points `simtrain.exporters`."""


class MegatronScript(Exporter):
    """Writes a script that starts Megatron-LM with a scenario's layout."""

    name, ending = "megatron", ".sh"

    def write(self, scenario: Scenario) -> str:
        from simtrain.importing.megatron.export import megatron_script

        return megatron_script(scenario)


def export(scenario: Scenario, to: str = "", out: str | Path | None = None) -> str:
    """Return the text from which a framework runs a scenario, as `simtrain export` writes it.

    Args:
        scenario: the scenario.
        to: the framework. Default: the one with the ending of the file.
        out: file to write too.

    Raises:
        InputError: the scenario is illegal or a recorded program (E952), no framework or an unknown
            one is named (E903, E904), or the file cannot be written.
    """
    from simtrain.base.output_folder import as_path, write_new
    from simtrain.studies.evaluation import Evaluator

    file = None if out is None else as_path(out)
    exporter = _exporter(to, file)
    if scenario.program is not None:
        message = f"the program {scenario.program} is code of its own"
        fix = "run the script from which it was recorded"
        raise InputError.of("E952", message, Location(scenario.name or "the scenario"), fix)
    # No framework chooses recompute: its answer is written.
    text = printable(exporter.write(Evaluator(allow_oom=True).evaluate(scenario).scenario))
    if file is not None:
        write_new(file, text)
    return text


def _exporter(name: str, out: Path | None) -> Exporter:
    """Return the exporter of a framework, or of the ending of a file."""
    ending = out.suffix if out else ""
    for each in EXPORTERS.values():
        if name == each.name or (ending and not name and ending == each.ending):
            return each
    place, names = Location("simtrain export --to"), ", ".join(EXPORTERS)
    if not name:
        raise InputError.of("E903", "is missing", place, f"write one of {names}")
    message = f'"{name}" is no framework that scenarios are written for'
    raise InputError.of("E904", message, place, f"{did_you_mean(name, EXPORTERS)}write {names}")
