"""A validation as tables, each part with its own, and the closing line."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from calibrate.validation.profile import Part, Row, Validation
from simtrain.pages.tables import table_of, verdict

_UNITS = {"s": ("ms", 1e3), "bytes": ("GiB", 2.0**-30)}


def part_table(part: Part) -> Table:
    """Predicted beside measured, a row for each."""
    unit, scale = _UNITS[part.unit]
    numbers = (f">measured\n{unit}", f">predicted\n{unit}", ">error\n%")
    rows = [[row.name, row.strategy, row.what, *_numbers(row, scale)] for row in part.rows]
    title = f"{part.title}: {part_summary(part)}"
    return table_of("what was run", "strategy", "", *numbers, title=title, rows=rows)


def part_summary(part: Part) -> str:
    """One line: mean and worst |error| with their limits, and the bias."""
    of_mean = "" if part.mean_limit is None else f" (at most {part.mean_limit:.1%})"
    return (
        f"mean |error| {part.mean_abs_error:.2%}{of_mean}, "
        f"worst {part.max_abs_error:.2%} (at most {part.worst_limit:.1%}), bias {part.bias:+.2%}"
    )


def left_out(validation: Validation) -> str:
    """What judged nothing, and why."""
    return (
        f"{validation.num_fitted} records left out: a fit may have used them, "
        "and what a profile was fitted on cannot judge it"
    )


def validation_verdict(validation: Validation) -> Text:
    """The closing line; it names the parts that missed their limits."""
    counts = ", ".join(f"{len(part.rows)} {_COUNTED[part.title]}" for part in validation.parts)
    missed = [part.title for part in validation.parts if not part.ok]
    end = f"; above the limit: {', '.join(missed)}" if missed else ""
    words = f"{validation.profile} on {validation.device}: {counts}{end}"
    return verdict(not missed, words)


_COUNTED = {"layers": "layer passes", "iterations": "iterations", "memory": "memory peaks"}


def _numbers(row: Row, scale: float) -> list[str]:
    values = [f"{scale * value:.4g}" for value in (row.measured, row.predicted)]
    return [*values, f"{100 * row.error:+.2f}"]
