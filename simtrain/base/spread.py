"""How far measured values lie from predicted ones: the spread of their log ratio."""

from __future__ import annotations

import math

from simtrain.base.values import dataclass

_NINE_OF_TEN = 0.9


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of ln(measured / predicted): symmetric around its centre, of Laplace's form.

    It has heavier tails than a normal distribution, as errors of predictions have.

    Args:
        width: nine of ten log ratios are at most this far from the centre; above 0.
    """

    width: float
    centre: float = 0.0

    def factor(self, share: float) -> float:
        """Return the factor that this share of the ratios measured / predicted is below."""
        distance = math.log(2 * min(share, 1 - share)) / math.log(1 - _NINE_OF_TEN)
        return math.exp(self.centre + math.copysign(self.width * distance, share - 0.5))

    def share_below(self, ratio: float) -> float:
        """Return the probability that measured / predicted is at most this ratio (above 0)."""
        distance = (math.log(ratio) - self.centre) / self.width
        tail = math.pow(1 - _NINE_OF_TEN, abs(distance)) / 2
        return tail if distance < 0 else 1 - tail
