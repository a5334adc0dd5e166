"""Sections of a scenario that may be written as a word alone."""

from __future__ import annotations

from simtrain.strict_yaml import Document, Positions

MEANT_BY_A_WORD = {"recompute": "strategy", "software": "stack"}
"""Sections that may be written as a word alone, and the field that the word is."""


def spell_out_words(document: Document) -> Document:
    """The document with `recompute: full` written as the section that it stands for.

    Overrides can then reach inside it, and rules find where the strategy was written.
    """
    data, positions = document.data, document.positions
    for name, field in MEANT_BY_A_WORD.items():
        if name not in data or isinstance(data[name], dict):
            continue
        keys, values = dict(positions.keys), dict(positions.values)
        for table in (keys, values):
            if (name,) in table:
                table[name, field] = table[name,]
        data, positions = data | {name: {field: data[name]}}, Positions(keys, values)
    return Document(data, positions)
