"""Sections of a scenario that can be written as a single word, such as `recompute: full`."""

from __future__ import annotations

from simtrain.base.strict_yaml import Positions, YamlDocument

MEANT_BY_A_WORD = {"offload": "unit", "recompute": "strategy", "software": "stack"}
"""Sections that can be written as a single word, and the field that the word sets."""


def spell_out_words(document: YamlDocument) -> YamlDocument:
    """Expand single words, such as `recompute: full`, to sections.

    Overrides can then set fields of the section, and errors can point to the word.
    """
    data, positions = document.data, document.positions
    for name, field in MEANT_BY_A_WORD.items():
        if name not in data or isinstance(data[name], dict):
            continue
        data = data | {name: {field: data[name]}}
        if (name,) in positions.places:
            place = positions.places[name,]
            positions = Positions({**positions.places, (name, field): place})
    return YamlDocument(data, positions)
