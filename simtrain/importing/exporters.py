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


class MegatronScript(Exporter):
    """Write a script that starts Megatron-LM with a scenario's layout.

    Importing it again gives the same scenario; comments list the fields that no argument sets.
    Data, tokenizer and learning rate are to be replaced.

    Example: simtrain export megatron llama3_70b --out llama3.sh
    """

    name = "megatron"

    def write(self, scenario: Scenario, *, nearest: bool = False) -> str:
        from simtrain.importing.megatron.export import megatron_script

        return megatron_script(scenario)


class DeepSpeedScript(Exporter):
    """Write a script that writes DeepSpeed's JSON and starts Megatron-DeepSpeed with it.

    Importing it again gives the same scenario; comments list the fields that neither the JSON nor
    an argument sets. Data, tokenizer and learning rate are to be replaced.

    Example: simtrain export deepspeed table5_22b_present --out megatron_deepspeed.sh
    """

    name = "deepspeed"

    def write(self, scenario: Scenario, *, nearest: bool = False) -> str:
        from simtrain.importing.deepspeed.export import deepspeed_script

        return deepspeed_script(scenario, nearest=nearest)


class TorchtitanJob(Exporter):
    """Write a job of torchtitan with a scenario's layout.

    Importing it again gives the same scenario. A layout that torchtitan cannot run is an error,
    with the field to change; comments list other fields that no key sets.

    Example: simtrain export torchtitan llama3_8b --set memory.zero_stage=3 --out llama3.toml
    """

    name = "torchtitan"

    def write(self, scenario: Scenario, *, nearest: bool = False) -> str:
        from simtrain.importing.torchtitan.export import torchtitan_job

        return torchtitan_job(scenario, nearest=nearest)
