"""Names and values of other programs, and what to write instead, from other_names.toml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@functools.cache
def _tables() -> dict[str, Any]:
    """Return the tables by name; each is read by errors alone."""
    import tomllib

    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def other_names(section: str) -> Mapping[str, str]:
    """Return what to write instead of other names of the fields of a section.

    Args:
        section: the class of the section. Names of `Model` include those of the fields of its
            section `experts`.
    """
    tables = _tables()
    names = _inverted(tables.get(section, {}))
    prefix = f"{section.lower()}."
    for name, ours in _inverted(tables["Scenario"]).items():
        if ours.startswith(prefix):
            names.setdefault(name, ours.removeprefix(prefix))

    if section == "Model":
        for name, ours in _inverted(tables["Experts"]).items():
            field = ours.partition(":")[0].partition(",")[0]
            is_field = not field.startswith("remove")
            names.setdefault(name, f"experts: {{{field}: ...}}" if is_field else ours)

    return names


def other_values(field: str) -> Mapping[str, str]:
    """Return remedies for other programs' values of a field, by the value in lower case."""
    return _inverted(_tables()["values"].get(field, {}))


def _inverted(table: Mapping[str, str]) -> dict[str, str]:
    return {name: ours for ours, names in table.items() for name in names.split()}
