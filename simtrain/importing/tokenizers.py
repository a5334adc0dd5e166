"""Tokens of well-known tokenizers, by the name of the model in a script."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from simtrain.importing.table import WordsFile

_VARIABLE = re.compile(r"\$\{?\w+\}?|\$\([^)]*\)?")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer.

    Args:
        name: its model.
        pattern: pattern of the model's name, in lower case with "-" for "_", as paths have it.
        tokens: its tokens with the added ones, which HuggingFaceTokenizer counts.
        source: where the number is from.
    """

    name: str
    pattern: str
    tokens: int
    source: str


_ROWS = WordsFile(Path(__file__).with_suffix(".toml")).rows
TOKENIZERS = tuple(Tokenizer(**row) for row in _ROWS["tokenizers"])
"""The first whose pattern is in a name counts."""
TOKENS_OF_TYPES: dict[str, int] = _ROWS["tokens_of_types"]
"""Tokens of Megatron-LM's types of tokenizers with a vocabulary of their own."""


def tokenizer_of(path: str) -> Tokenizer | None:
    """Return the tokenizer that a name or a path names; None for others.

    Names of variables in the path, such as $LLAMA3_FOLDER, count for nothing.
    """
    text = _VARIABLE.sub("", path).lower().replace("_", "-")
    return next(
        (each for each in TOKENIZERS if re.search(rf"(?<![a-z\d]){each.pattern}", text)), None
    )
