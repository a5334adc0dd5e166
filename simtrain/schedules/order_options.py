"""What a scenario chooses of a schedule's order, apart from its sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OrderOptions:
    """The options of an order.

    Args:
        group_size: microbatches that a chunk runs before the next chunk does; None for the
            schedule's default.
        merges: some forward passes run merged with backward passes of other microbatches.
        num_slices: slices of each sequence, of which each pass runs one.
    """

    group_size: int | None = None
    merges: bool = False
    num_slices: int = 1


NO_OPTIONS = OrderOptions()
