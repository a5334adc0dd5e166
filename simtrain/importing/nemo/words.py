"""Words of Megatron-Bridge and NeMo: the arguments of Megatron-LM that they set (words.toml)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from simtrain.importing.megatron.arguments import TABLE
from simtrain.importing.table import WordsFile, WordTable

WORDS = WordsFile(Path(__file__).with_suffix(".toml"))


def table_of(tool: str) -> WordTable:
    """Return the table of a tool: Megatron-LM's arguments, and the tool's own words."""
    return dataclasses.replace(
        TABLE,
        kind="field",
        source=tool,
        mapped=dict(TABLE.mapped) | WORDS.words("fields"),
        not_modelled=dict(TABLE.not_modelled) | WORDS.effects("not_modelled"),
        without_effect=TABLE.without_effect | WORDS.names("without_effect"),
    )
