"""Import Megatron-LM's arguments of a measured run, and say what of them is not modelled."""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError
from simtrain.importing.megatron.arguments import NOT_MODELLED
from simtrain.importing.megatron.scenario_draft import draft_of
from simtrain.importing.megatron.source import read_source
from simtrain.scenario import Scenario


def import_arguments(source: str, overrides: Sequence[str]) -> tuple[Scenario, list[str]]:
    """Return the scenario of arguments or of a log, and what of the arguments is not modelled.

    Raises:
        InputError: as `megatron_draft`, but for unknown arguments, which are noted; or an argument
            has an effect so large that the run cannot be compared (E893).
    """
    draft = draft_of(
        read_source(source), ImportRequest(source, overrides=overrides, ignore_unknown=True)
    )
    for name, effect in NOT_MODELLED.items():
        setting = draft.given(name) if effect.is_large else None
        if setting and effect.applies(setting.value):
            message = f"{setting.words} is not modelled: {effect.text}"
            raise InputError.of("E893", message, setting.place, "compare a run without it")
    return draft.finished()[0], draft.notes
