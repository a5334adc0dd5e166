"""How far a fitted profile's times may be off, by the fit's own errors and the records' doubts."""

import math
from collections.abc import Sequence

from calibrate.fit.doubts import Sifted
from calibrate.fit.entry import Data, entry, round_significant
from calibrate.records.schema import Measurement, Timing
from simtrain.base.accuracy import Comparison

_COVERED = 0.9
"""Share of the fit's points that the statement covers."""
_LEAST = 0.05
"""No microbenchmark says more about an iteration, which has work that none of them has."""
_COPIED, _MOST = math.log(2), math.log(100)
"""Logarithms of the factor between two machines of a kind, and of the largest that is stated."""


def uncertainty_entry(shown: Sequence[Comparison], sifted: Sifted, num_copied: int) -> Data:
    """The entry `uncertainty`: the relative error that nine of ten times stay below.

    The errors of nine of ten fitted points and the median spread of the records add up as
    independent errors. Doubtful records, and sections copied from another machine, widen the sum.
    """
    ratios = sorted(row.log_ratio for each in shown for row in each.rows)
    fit = ratios[math.ceil(_COVERED * len(ratios)) - 1] if ratios else math.log(2)
    spread = _median_spread(sifted.kept)
    copied = _COPIED if num_copied else 0.0
    off = math.hypot(fit, spread, copied) * (1 + sifted.doubtful_share)
    value = max(_LEAST, math.expm1(min(off, _MOST)))
    parts = [
        f"{_COVERED:.0%} of {len(ratios)} fitted points are within {math.expm1(fit):.0%}",
        f"times spread by {spread:.0%}",
        f"{sifted.doubtful_share:.0%} of the records are doubtful",
    ]
    if num_copied:
        parts.append(f"{num_copied} sections are copied from another machine")
    return entry(round_significant(value, 2), "; ".join(parts))


def _median_spread(records: Sequence[Measurement]) -> float:
    """Median of half the distance between quartiles, relative to the median time."""
    spreads = sorted(
        time.spread_s / time.median_s
        for record in records
        for _, time in record
        if isinstance(time, Timing)
    )
    return spreads[len(spreads) // 2] if spreads else 0.0
