"""The page of a validation: a table for each part, and the closing line."""

from __future__ import annotations

from rich.console import Console

from calibrate.tables import comparison_table
from calibrate.validation.profile import Validation
from simtrain.comparison import Comparison
from simtrain.pages.tables import verdict

_COUNTED = {"layers": "layer passes", "iterations": "iterations", "memory": "memory peaks"}


def print_validation(validation: Validation, console: Console) -> None:
    """Print the parts, the number of records left out, and the verdict."""
    for part in validation.parts:
        title = f"{part.title}: {_summary(part)}"
        console.print(comparison_table(title, part, "scenario", "strategy", "time of"))
    left_out = (
        f"{validation.num_fitted} records left out: a fit may have used them, "
        "and a profile is validated on other records only"
    )
    console.print(left_out, soft_wrap=True)
    counts = ", ".join(f"{len(part.rows)} {_COUNTED[part.title]}" for part in validation.parts)
    missed = [part.title for part in validation.parts if not part.ok]
    end = f"; above the limit: {', '.join(missed)}" if missed else ""
    words = f"{validation.profile} on {validation.device}: {counts}{end}"
    console.print(verdict(not missed, words), soft_wrap=True)


def _summary(part: Comparison) -> str:
    """Mean and worst |error| with their limits, and the bias."""
    mean = "" if part.mean_threshold is None else f" (at most {part.mean_threshold:.1%})"
    return (
        f"mean |error| {part.mean_abs_error:.2%}{mean}, worst {part.max_abs_error:.2%} "
        f"(at most {part.max_threshold:.1%}), bias {part.bias:+.2%}"
    )
