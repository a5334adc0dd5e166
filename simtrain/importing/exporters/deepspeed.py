"""Scripts that start Megatron-DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.importing.exporters.exporter import Exporter

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class DeepSpeedScript(Exporter):
    """Write a script that writes DeepSpeed's JSON and starts Megatron-DeepSpeed with it.

    Importing it again gives the same scenario; comments list the fields that neither the JSON nor
    an argument sets. Data, tokenizer and learning rate are to be replaced.

    Example: simtrain export deepspeed table5_22b_present --out megatron_deepspeed.sh
    """

    name = "deepspeed"

    def write(self, scenario: Scenario, *, nearest: bool = False) -> str:
        """Return the text of a script."""
        from simtrain.importing.deepspeed.export import deepspeed_script

        return deepspeed_script(scenario, nearest=nearest)
