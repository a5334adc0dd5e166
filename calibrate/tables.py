"""The table of a comparison: measured and predicted numbers, and their errors."""

from collections.abc import Iterable, Sequence

from simtrain.base.accuracy import ErrorTable, Pair
from simtrain.views.kinds import TEXT, Kind
from simtrain.views.view import Column, Row, Table

_UNITS = {"s": ("ms", 1e3), "bytes": ("GiB", 2.0**-30)}
"""Units that a table writes in others, and the factor."""


def comparison_table(
    name: str,
    title: str,
    comparison: ErrorTable,
    *labels: str,
    predicted: str = "predicted",
    rows: Iterable[Pair] | None = None,
    further: Sequence[tuple[Column, Sequence[float]]] = (),
) -> Table:
    """A table with a row for each pair, or for each of `rows`.

    `labels` and `predicted` are headings; `further` has the columns right of the errors, with
    their values.
    """
    unit, scale = _UNITS.get(comparison.unit, (comparison.unit, 1.0))
    scaled = Kind(lambda value: f"{scale * value:.4g}")
    columns = [
        *(Column(label, label, TEXT) for label in labels),
        Column(f"measured_{comparison.unit}", f"measured\n{unit}", scaled),
        Column(f"{predicted}_{comparison.unit}", f"{predicted}\n{unit}", scaled),
        Column("error", "error\n%", PERCENT),
        *(column for column, _ in further),
    ]
    shown = [*(comparison.rows if rows is None else rows)]
    values = zip(*(values for _, values in further), strict=True) if further else [()] * len(shown)
    cells = [
        Row((*row.labels, row.measured, row.predicted, row.error, *more))
        for row, more in zip(shown, values, strict=True)
    ]
    return Table(name, title, columns, cells)


PERCENT = Kind(lambda error: f"{100 * error:+.2f}")
"""A signed error in percent."""
