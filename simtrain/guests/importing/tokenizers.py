"""Tokens of well-known tokenizers, by the name of the model in a script (tokenizers.toml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simtrain.guests.importing.table import WordsFile

_VARIABLE = re.compile(r"\$\{?\w+\}?|\$\([^)]*\)?")
_FILE = WordsFile(Path(__file__).with_suffix(".toml"))
TOKENIZERS: list[dict[str, Any]] = _FILE.rows["tokenizers"]
"""The first whose pattern is in a name counts."""
TOKENS_OF_TYPES: dict[str, int] = _FILE.section("tokens_of_types")
"""Tokens of Megatron-LM's types of tokenizers with a vocabulary of their own."""


def tokenizer_of(path: str) -> tuple[str, int] | None:
    """Return the name and the tokens of the tokenizer that a path names; None for others.

    Names of variables in the path, such as $LLAMA3_FOLDER, count for nothing.
    """
    text = _VARIABLE.sub("", path).lower().replace("_", "-")
    rows = (row for row in TOKENIZERS if re.search(rf"(?<![a-z\d]){row['pattern']}", text))
    return next(((row["name"], row["tokens"]) for row in rows), None)
