"""The page of `reproduce explore` with few simulations, and the legal positions of its sliders."""

import functools
import math
from fractions import Fraction

from simtrain.guests.paper.explore import explore_document, slider_values
from simtrain.render.html.document import HtmlDocument

VALUES = slider_values()


@functools.cache
def small_document() -> HtmlDocument:
    """Return the page of one simulated model and two sequence lengths."""
    return explore_document(["22B"], [2048, 8192])


def legal(wanted: dict[str, int]) -> dict[str, int]:
    """Return legal sizes as the page computes them: the most ranks that divide the heads, and the
    nearest multiple of the heads.
    """
    heads = wanted["a"]
    ranks = max(one for one in VALUES["t"] if one <= wanted["t"] and heads % one == 0)
    hidden = max(1, math.floor(Fraction(wanted["h"], heads) + Fraction(1, 2))) * heads
    return wanted | {"t": ranks, "h": hidden}
