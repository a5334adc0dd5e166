"""Lists of what comes with simtrain: scenarios, sweeps, profiles."""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.views.kinds import TEXT
from simtrain.views.view import Column, Row, Table, View


def names_view(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> View:
    """A list of names, each with what is said of it; the last column is a text."""
    headings = [Column(name, name, TEXT) for name in columns]
    return View([Table("names", "", headings, [*map(Row, rows)], layout="list")])
