"""The page of a validation: a table for each part, and the closing line."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from calibrate.tables import comparison_table
from calibrate.validation.profile import Validation
from simtrain.comparison import Comparison
from simtrain.pages.tables import verdict

_COUNTED = {"layers": "layer passes", "iterations": "iterations", "memory": "memory peaks"}


def part_table(part: Comparison) -> Table:
    """The pairs of a part; its title has mean and worst |error| with their limits, and the bias."""
    mean = "" if part.mean_threshold is None else f" (at most {part.mean_threshold:.1%})"
    summary = (
        f"mean |error| {part.mean_abs_error:.2%}{mean}, worst {part.max_abs_error:.2%} "
        f"(at most {part.max_threshold:.1%}), bias {part.bias:+.2%}"
    )
    return comparison_table(f"{part.title}: {summary}", part, "scenario", "strategy", "time of")


def left_out(validation: Validation) -> str:
    """The number of records that judge nothing, and why."""
    return (
        f"{validation.num_fitted} records left out: a fit may have used them, "
        "and what a profile was fitted on cannot judge it"
    )


def validation_verdict(validation: Validation) -> Text:
    """The closing line; it names the parts above their limits."""
    counts = ", ".join(f"{len(part.rows)} {_COUNTED[part.title]}" for part in validation.parts)
    missed = [part.title for part in validation.parts if not part.ok]
    end = f"; above the limit: {', '.join(missed)}" if missed else ""
    words = f"{validation.profile} on {validation.device}: {counts}{end}"
    return verdict(not missed, words)
