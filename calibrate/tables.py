"""The table of a comparison: measured and predicted numbers, and their errors."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from simtrain.base.accuracy import Comparison, Pair
from simtrain.render.pages.tables import table_of

_UNITS = {"s": ("ms", 1e3), "bytes": ("GiB", 2.0**-30)}
"""Units that a table writes in others, and the factor."""


def comparison_table(
    title: str,
    comparison: Comparison,
    *labels: str,
    predicted: str = "predicted",
    rows: Iterable[Pair] | None = None,
    further: Sequence[tuple[str, Sequence[str]]] = (),
) -> Table:
    """A table with a row for each pair, or for each of `rows`.

    `labels` and `predicted` are headings; `further` has the heading and the cells of each column
    right of the errors.
    """
    unit, scale = _UNITS.get(comparison.unit, (comparison.unit, 1.0))
    headings = f">measured\n{unit}", f">{predicted}\n{unit}", ">error\n%"
    cells = [
        (
            *row.labels,
            f"{scale * row.measured:.4g}",
            f"{scale * row.predicted:.4g}",
            f"{100 * row.error:+.2f}",
        )
        for row in (comparison.rows if rows is None else rows)
    ]
    columns = [column for _, column in further]
    return table_of(
        *(*labels, *headings, *(heading for heading, _ in further)),
        title=title,
        rows=[(*row, *more) for row, *more in zip(cells, *columns, strict=True)],
    )
