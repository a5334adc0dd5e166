"""What an exporter answers: its command, and the text that a framework reads.

Modules of exporters import scenarios in functions or for types only: `--help` lists the exporters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from simtrain.base.plug_ins import Parts

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class Exporter(ABC):
    """Writes a scenario as a framework reads it.

    The docstring of its class is the help of its command, with an example.
    """

    name: ClassVar[str]
    """Its command, `simtrain export NAME`, and the importer that reads its text."""

    @abstractmethod
    def write(self, scenario: Scenario, *, nearest: bool = False) -> str:
        """Return the text from which the importer of this name makes the scenario again.

        Comments list the fields that the framework cannot say (`lost_fields`).

        Args:
            scenario: a checked scenario.
            nearest: change what the framework cannot run to the nearest that it can, with comments
                on the changes.

        Raises:
            InputError: the framework cannot run the scenario, and with `nearest` none near it.
        """


EXPORTERS = Parts[Exporter]("exporters", Exporter, ())
"""All exporters, found by their entry points `simtrain.exporters`."""
