"""Models that other tools choose by a name, with the config.json that was published for each.

A config of torchtitan, NeMo or Megatron-Bridge contains such a name in place of sizes. The keys are
those of Hugging Face, and `simtrain import` reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simtrain.base.strict_yaml import Positions, YamlDocument
from simtrain.importing.hugging_face.model_config import fields_of_config
from simtrain.importing.table import WordsFile


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The fields of a published model, and its parts that are not modelled.

    Args:
        name: its name on Hugging Face.
        fields: the section `model` of its scenario.
        notes: one sentence for each part that is not modelled.
    """

    name: str
    fields: dict[str, Any]
    notes: tuple[str, ...]


_TUNED = re.compile(r"(?:-(?:instruct|base|chat|it|pt|hf|v0\.\d|\d{4}))+$")
"""The end of a name that tells how a model was tuned or released."""


_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
)


def _config(row: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a row of the file."""
    others = {
        key: None if value == "null" else value
        for key, value in row.items()
        if key not in ("model_type", "sizes")
    }
    sizes = dict(zip(_SIZES, row["sizes"], strict=True))
    return {"model_type": row["model_type"], **sizes, **others}


_ROWS = WordsFile(Path(__file__).with_suffix(".toml")).rows
CONFIGS = {name: _config(row) for name, row in _ROWS.items()}
"""The config of each model by its name on Hugging Face, with its keys that set sizes."""


def published_model(name: str) -> PublishedModel:
    """Return a published model by its name on Hugging Face.

    Raises:
        KeyError: simtrain does not have its config.
    """
    fields, notes = fields_of_config(YamlDocument(CONFIGS[name], Positions({})), name)
    return PublishedModel(name, fields, notes)


def known_name(name: str) -> str | None:
    """Return the name of a published model of the same sizes, without -Instruct; or None."""
    same = {_sizes(each): each for each in CONFIGS}
    return name if name in CONFIGS else same.get(_sizes(name))


def _sizes(name: str) -> str:
    return _TUNED.sub("", name[:200].lower().replace("meta-llama-", "llama-"))
