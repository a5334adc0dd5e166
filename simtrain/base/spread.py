"""How far measured values lie from predicted ones: the spread of their log ratio."""

from __future__ import annotations

import math

from simtrain.base.values import dataclass

_NINE_OF_TEN = 0.9


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of ln(measured / predicted): symmetric around 0, of Laplace's form.

    Laplace's form has one parameter and heavier tails than a normal distribution, as errors of
    predictions have: most are small, a few are large. Twice as long and half as long are equally
    far off, so that no interval reaches zero.

    Args:
        width: nine of ten log ratios are at most this far from 0; above 0.
    """

    width: float

    def factor(self, share: float = _NINE_OF_TEN) -> float:
        """Return the factor, in either direction, within which this share of values lies."""
        return math.exp(self.width * math.log(1 - share) / math.log(1 - _NINE_OF_TEN))

    def share_below(self, ratio: float) -> float:
        """Return the probability that measured / predicted is at most this ratio (above 0)."""
        distance = math.log(ratio) / self.width
        tail = math.pow(1 - _NINE_OF_TEN, abs(distance)) / 2
        return tail if distance < 0 else 1 - tail
