"""Scripts that start Megatron-DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.importing.exporters.exporter import Exporter

if TYPE_CHECKING:
    from simtrain.scenario import Scenario


class DeepSpeedScript(Exporter):
    """A script that writes DeepSpeed's JSON and starts Megatron-DeepSpeed with it."""

    name = "deepspeed"
    text = """Write a script that writes DeepSpeed's JSON and starts Megatron-DeepSpeed with it.

    Importing it again gives the same scenario; comments list the fields that neither the JSON nor
    an argument sets. Data, tokenizer and learning rate are to be replaced.

    Example: simtrain export deepspeed table5_22b_present --out megatron_deepspeed.sh
    """

    def write(self, scenario: Scenario) -> str:
        """Return a script that starts Megatron-DeepSpeed."""
        from simtrain.importing.deepspeed.export import deepspeed_script

        return deepspeed_script(scenario)

    def write_nearest(self, scenario: Scenario) -> str:
        """Return the text of the nearest script."""
        from simtrain.importing.deepspeed.export import deepspeed_script

        return deepspeed_script(scenario, nearest=True)
