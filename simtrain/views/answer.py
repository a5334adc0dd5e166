"""How answers read: by the view of their study, and without one as tables of the keys of JSON."""

from __future__ import annotations

from typing import Any

from simtrain.base.registered import imported
from simtrain.views.kinds import BYTES, COUNT, FOUR_DIGITS, NUMBER, SECONDS, TEXT, Kind
from simtrain.views.view import Column, Headline, Row, Table, View

_VIEWS = {
    "Comparison": "compare.compare_view",
    "ScheduleComparison": "schedules.schedules_view",
    "SearchResult": "search.search_view",
    "SweepRows": "sweep.rows_view",
    "TrainingCost": "cost.cost_view",
    "TrainingPlan": "plan.plan_view",
    "Validation": "validation.validation_view",
}
"""The views of answers that say more than a table, by the names of classes."""
_UNITS = {"_s": SECONDS, "_bytes": BYTES}
_TYPES = {str: TEXT, int: COUNT, float: FOUR_DIGITS}


def answer_view(answer: Any, **choices: object) -> View:
    """Return the view of an answer; by default a table for each list of objects that JSON has."""
    if place := _VIEWS.get(type(answer).__name__):
        return imported(f"simtrain.views.{place}")(answer, **choices)  # type: ignore[no-any-return]
    data = answer.to_dict().items()
    tables = [_table(name, rows) for name, rows in data if rows and isinstance(rows, list)]
    return View([*tables, Headline(answer.headline)])


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    columns = [Column(key, key.replace("_", " "), kind_of(key, rows[0][key])) for key in rows[0]]
    return Table(name, "", columns, [Row([*row.values()]) for row in rows])


def kind_of(name: str, value: object) -> Kind:
    """Return how a value reads: by the unit in its name, and else by its type."""
    of_unit = (kind for unit, kind in _UNITS.items() if name.endswith(unit))
    return next(of_unit, _TYPES.get(type(value), NUMBER))
