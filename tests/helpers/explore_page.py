"""The page of `simtrain explore` with few simulations, and the sizes that its sliders allow."""

import functools
import math
from fractions import Fraction

from simtrain.html.document import Document
from simtrain.html.explore import explore_document
from simtrain.html.explore.data import sliders

VALUES = sliders()


@functools.cache
def small_document() -> Document:
    """The page of one simulated model, two sequence lengths and two sizes of microbatches."""
    return explore_document(["22B"], [2048, 8192], [1, 4])


def legal(wanted: dict[str, int]) -> dict[str, int]:
    """As the page does: the most ranks that divide the heads, the nearest multiple of the heads."""
    heads = wanted["a"]
    ranks = max(one for one in VALUES["t"] if one <= wanted["t"] and heads % one == 0)
    hidden = max(1, math.floor(Fraction(wanted["h"], heads) + Fraction(1, 2))) * heads
    return wanted | {"t": ranks, "h": hidden}
