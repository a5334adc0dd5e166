"""What `simtrain export` writes: an object per framework.

Scenarios are imported in functions or for types only: `--help` lists the exporters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from simtrain.base.plug_ins import Parts

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
        """Return the text from which the importer of this name makes the scenario again.

        Comments list the fields that the framework cannot say (`lost_fields`).

        Args:
            scenario: a checked scenario.

        Raises:
            InputError: the framework cannot run the scenario.
        """


EXPORTERS = Parts[Exporter]("exporters", Exporter, ())
"""All exporters, found by their entry points `simtrain.exporters`."""


class MegatronScript(Exporter):
    """Writes a script that starts Megatron-LM with a scenario\'s layout."""

    name, ending = "megatron", ".sh"

    def write(self, scenario: Scenario) -> str:
        from simtrain.importing.megatron.export import megatron_script

        return megatron_script(scenario)
