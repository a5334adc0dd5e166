"""Refuse models with parts that simtrain does not have, by the names of their classes."""

from __future__ import annotations

import re

from simtrain.errors import InputError, Location
from simtrain.importing.nemo.words import WORDS


def refuse_family(name: str, place: Location | None) -> None:
    """Check that the name of a class or model is not of a kind that simtrain does not have.

    Raises:
        InputError: the model has such a part (E877).
    """
    for pattern, part in WORDS.section("missing").items():
        if re.search(pattern, name[:500].lower()):
            raise InputError.of(
                "E877",
                f"{name[:100]} is a model with a part that simtrain does not have: {part}",
                place,
                "import a model of transformer layers only",
                "a GPT without this part would give a wrong time and memory",
            )
