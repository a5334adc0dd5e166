"""Import Megatron-LM's arguments of a measured run, and say which of them were left out."""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.errors import InputError
from simtrain.importing.megatron.mapping import import_megatron
from simtrain.scenario import Scenario

_UNKNOWN = "E871"


def import_arguments(source: str, overrides: Sequence[str]) -> tuple[Scenario, list[str]]:
    """Return the scenario of arguments or of a log, and which arguments were left out as unknown.

    Raises:
        InputError: as `import_megatron`, but for unknown arguments.
    """
    try:
        return import_megatron(source, overrides)[0], []
    except InputError as error:
        unknown = [problem.message for problem in error.problems if problem.code == _UNKNOWN]
        if not unknown:
            raise
    scenario, _ = import_megatron(source, overrides, ignore_unknown=True)
    return scenario, [f"{message}: left out" for message in unknown]
