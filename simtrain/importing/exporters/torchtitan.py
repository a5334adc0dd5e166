"""Jobs of torchtitan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.importing.exporters.exporter import Exporter

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class TorchtitanJob(Exporter):
    """Write a job of torchtitan with a scenario's layout.

    Importing it again gives the same scenario. A layout that torchtitan cannot run is an error,
    with the field to change; comments list other fields that no key sets.

    Example: simtrain export torchtitan llama3_8b --set memory.zero_stage=3 --out llama3.toml
    """

    name = "torchtitan"

    def write(self, scenario: Scenario, *, nearest: bool = False) -> str:
        """Return the text of a job."""
        from simtrain.importing.torchtitan.export import torchtitan_job

        return torchtitan_job(scenario, nearest=nearest)
