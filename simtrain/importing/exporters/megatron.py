"""Scripts that start Megatron-LM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.importing.exporters.exporter import Exporter

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class MegatronScript(Exporter):
    """Write a script that starts Megatron-LM with a scenario's layout.

    Importing it again gives the same scenario; comments list the fields that no argument sets.
    Data, tokenizer and learning rate are to be replaced.

    Example: simtrain export megatron llama3_70b --out llama3.sh
    """

    name = "megatron"

    def write(self, scenario: Scenario, *, nearest: bool = False) -> str:
        """Return the text of a script, which has all layouts."""
        from simtrain.importing.megatron.export import megatron_script

        return megatron_script(scenario)
