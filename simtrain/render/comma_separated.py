"""Tables of views as comma-separated values, in full precision."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from simtrain.errors import printable
from simtrain.views.view import Table


def csv_text(table: Table) -> str:
    """Return a line for each row, below the names of the columns. Missing values are empty."""
    records = table.records()
    names = (
        list(records[0]) if records else [column.name for column in table.columns if column.name]
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_written(record.get(name)) for name in names] for record in records)
    return text.getvalue()


def _written(value: Any) -> Any:
    """Format a value as JSON (true, [1, 2]); text and null stay, without control characters."""
    if value is None:
        return value
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
