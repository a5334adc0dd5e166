"""Tries a product of each data type and layout, to measure in a type that is fast here."""

import math
from collections.abc import Mapping
from typing import get_args

from calibrate.benchmarks.products import product_runs
from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Timer, in_turn
from calibrate.records.compute import Compute
from calibrate.records.schema import GemmWork, Layout

_NUM_RUNS = 4
"""Runs of each product, of which the fastest counts: other work of a machine only slows it."""
_MUCH_FASTER = 1.5
"""How much faster a type is than the one that training prefers, to be measured instead of it."""


def try_products(sizes: Sizes, timer: Timer) -> dict[str, float]:
    """FLOP/s of the projection of the first layer, by data type and layout, such as "bf16 TN"."""
    layer, rates = sizes.products[0], dict[str, float]()
    for dtype in get_args(Compute):
        for layout in get_args(Layout):
            work = GemmWork(
                m=layer.tokens, n=layer.hidden, k=layer.hidden, layout=layout, dtype=dtype
            )
            run = in_turn(product_runs(work, timer))
            seconds = min(timer.once(run)[1] for _ in range(_NUM_RUNS))
            rates[f"{dtype} {layout}"] = 2 * work.m * work.n * work.k / seconds
    return rates


def chosen_dtype(rates: Mapping[str, float]) -> Compute:
    """The type that training prefers, of those not much slower than the fastest.

    A training step of a linear layer has a product of each layout, so their total time counts.
    """
    seconds: dict[Compute, float] = {
        dtype: math.fsum(1 / rates[f"{dtype} {layout}"] for layout in get_args(Layout))
        for dtype in get_args(Compute)
    }
    fastest = min(seconds.values())
    return next(dtype for dtype, taken in seconds.items() if taken <= _MUCH_FASTER * fastest)


def choice_in_words(rates: Mapping[str, float]) -> str:
    """The chosen type, and why it was chosen if it is not the one that training prefers."""
    chosen, preferred = chosen_dtype(rates), get_args(Compute)[0]
    if chosen == preferred:
        return f"{chosen}"
    reached = {
        dtype: ", ".join(
            f"{layout} {rates[f'{dtype} {layout}'] / 1e9:.3g}" for layout in get_args(Layout)
        )
        for dtype in (preferred, chosen)
    }
    return (
        f"{chosen}, because this machine is slow in {preferred} (GFLOP/s by layout: {preferred} "
        f"{reached[preferred]}; {chosen} {reached[chosen]})"
    )
