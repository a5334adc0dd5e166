"""An order that was searched: `simtrain schedule optimize`."""

from __future__ import annotations

from simtrain.orders.result import OptimizedOrder
from simtrain.units import counted, format_seconds, gib
from simtrain.views.kinds import GIB, SECONDS, SHARE, WHOLE_TEXT
from simtrain.views.view import (
    Column,
    Facts,
    Heading,
    Row,
    SchedulePicture,
    Table,
    View,
    remarks,
)

_COLUMNS = (
    Column("name", "order", WHOLE_TEXT),
    Column("iteration_time_s", "time", SECONDS),
    Column("slower", "slower by", SHARE, "than the order that was found"),
    Column("peak_bytes", "peak GiB", GIB),
    Column("fits", "fits", WHOLE_TEXT),
)


def order_view(order: OptimizedOrder, scenario: str, file: str | None) -> View:
    """Show the order, its time beside those of named schedules, and how far off it can be.

    Args:
        order: the order that was found.
        scenario: its name or file, for the command that runs the order.
        file: where the order was written; None if it was not.
    """
    best_s, limit = order.iteration_time_s, gib(order.limit_bytes)
    facts = [
        ("best order", order.origin),
        ("iteration time", format_seconds(best_s)),
        ("no order takes less than", format_seconds(order.bound_s)),
        ("peak memory", f"{gib(order.peak_bytes)} GiB of {limit} GiB"),
    ]
    rows = [
        Row(
            [
                named.name,
                named.iteration_time_s,
                named.iteration_time_s / best_s - 1,
                named.peak_bytes,
                "yes" if named.fits else "no",
            ]
        )
        for named in order.named
    ]
    return View(
        [
            Heading("An order of the pipeline's passes"),
            Facts(facts),
            Table("named", "Named schedules of these sizes", _COLUMNS, rows),
            SchedulePicture(order.schedule),
            remarks(_remarks(order, scenario, file)),
        ]
    )


def _remarks(order: OptimizedOrder, scenario: str, file: str | None) -> list[str]:
    tried = counted(order.num_tried, "order")
    if order.is_exact:
        words = [
            "Exact: every order was solved for, with messages that do not wait for each other."
        ]
    else:
        words = [f"Best found of {tried}: at most {order.at_most_slower:.1%} slower than the best."]
    if not order.fits:
        words.append("No order that was tried fits in memory; this one needs the least.")
    if file:
        run = f"simtrain run {scenario} --set schedule={file} --set overlap.pipeline=true"
        words.append(f"Written to {file}. Run it with: {run}")
    else:
        words.append("--out FILE.csv writes it for simtrain run and for PyTorch's pipelining.")
    return words
