"""What an exporter answers: its command, and the text that a framework reads.

Modules of exporters import scenarios in functions or for types only: `--help` lists the exporters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class Exporter(ABC):
    """Writes a scenario as a framework reads it."""

    name: ClassVar[str]
    """Its command, `simtrain export NAME`, and the importer that reads its text."""
    text: ClassVar[str]
    """Help of the command, with an example."""

    def write_nearest(self, scenario: Scenario) -> str:
        """Return the text of the nearest scenario that the framework can run.

        Comments list what differs. By default the framework can run all layouts, or none is near.

        Raises:
            InputError: no scenario that the framework can run is near.
        """
        return self.write(scenario)

    @abstractmethod
    def write(self, scenario: Scenario) -> str:
        """Return the text from which the importer of this name makes the scenario again.

        Comments list the fields that the framework cannot say (`lost_fields`).

        Raises:
            InputError: the framework cannot run the scenario.
        """
