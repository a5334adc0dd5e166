"""Writes a fitted profile as a YAML file that people can read."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

_HEADER = """\
# {description}
#
# Written by `python -m calibrate fit {source}`; do not edit: {instead}
"""
_FIGURES = """\
change the
# figures and fit again. Each entry has its value, its source, and what it was fitted on."""
_MEASURED = """\
measure
# again (`python -m calibrate measure`, a new folder) and fit that; a scenario changes an entry by
# `hardware`, which its report then says. Each entry has its value, its source, and what it was
# fitted on."""


def profile_text(data: dict[str, Any], source: str, *, measured: bool = False) -> str:
    """The text of a profile's file, fitted to `source`: a folder if `measured`, or figures."""
    yaml = YAML()
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(_styled(data), stream)
    instead = _MEASURED if measured else _FIGURES
    header = _HEADER.format(description=data["description"], source=source, instead=instead)
    return header + stream.getvalue()


def _styled(value: Any) -> Any:
    """Style data: mappings as blocks, plain lists on one line, quotes around ambiguous text."""
    if isinstance(value, dict):
        styled = CommentedMap((key, _styled(item)) for key, item in value.items())
        if all(isinstance(item, int | float) for item in value.values()) and value:
            styled.fa.set_flow_style()
        return styled
    if isinstance(value, list | tuple):
        items = CommentedSeq(_styled(item) for item in value)
        if not any(isinstance(item, dict) for item in value):
            items.fa.set_flow_style()
        return items
    if isinstance(value, str) and (":" in value or "%" in value or "," in value):
        return DoubleQuotedScalarString(value)
    return value
