"""Arguments of Megatron-LM: mapped to a field, without effect, or not modelled (arguments.toml)."""

from __future__ import annotations

from pathlib import Path

from simtrain.base.values import replace
from simtrain.guests.importing.table import WordsFile, details_of
from simtrain.scenario.dispatchers import DEFAULT, DISPATCHERS

_FILE = WordsFile(Path(__file__).with_suffix(".toml"))
_TYPES = {"alltoall_seq": DEFAULT.name} | {
    dispatcher.megatron[0]: name for name, dispatcher in reversed([*DISPATCHERS.items()])
}
"""Types of dispatchers; the first of several of a type is its default backend."""
_BACKENDS = {
    backend: name for name, dispatcher in DISPATCHERS.items() if (backend := dispatcher.megatron[1])
}

MAPPED = _FILE.words("fields")
"""The field that each argument sets, alone or together with others."""
MAPPED["moe_token_dispatcher_type"] = replace(MAPPED["moe_token_dispatcher_type"], values=_TYPES)
MAPPED["moe_flex_dispatcher_backend"] = replace(
    MAPPED["moe_flex_dispatcher_backend"], default=next(iter(_BACKENDS)), values=_BACKENDS
)

EXPORTED = {section: names.split() for section, names in _FILE.section("exported").items()}
"""The arguments that the export writes for the fields that they set, by section."""
GROUPS = {group: names.split() for group, names in _FILE.section("groups").items()}
"""Arguments that are read together."""
OTHER_MODELS = _FILE.effects("other_models")
"""The part of the model that is missing in simtrain, for arguments that define other models."""
MISSING_OF_SCRIPTS: dict[str, str] = _FILE.section("scripts")
"""The part that is missing, with the words in names of training scripts that say so."""
USERBUFFERS = _FILE.effects("userbuffers")
"""Effects of arguments that are not modelled and apply only with tp_comm_overlap."""
NOT_MODELLED = _FILE.effects("not_modelled")
TABLE = _FILE.table(
    mapped=MAPPED,
    # Other models are refused before the table is read.
    without_effect=_FILE.names("without_effect")
    | _FILE.names("flags_without_effect")
    | OTHER_MODELS.keys(),
    details=details_of(NOT_MODELLED | OTHER_MODELS) | USERBUFFERS.keys(),
)
KNOWN = TABLE.words
FLAGS = _FILE.names("flags_without_effect") | {
    name for name, word in MAPPED.items() if isinstance(word.default, bool)
}
"""Arguments that no value follows."""
WITH_VALUE = (_FILE.names("without_effect") | _FILE.names("with_value") | MAPPED.keys()) - FLAGS
"""Arguments that a value follows."""
SPELLINGS = {
    name: (argument, section == "spellings")
    for section in ("spellings", "spellings_off")
    for name, argument in _FILE.section(section).items()
}
"""Arguments of flags with another name, and whether the flag turns its argument on."""
