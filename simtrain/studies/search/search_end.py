"""Why and when a search ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum


class End(StrEnum):
    """Why a search ended."""

    FOUND_ALL = "found all"
    FOUND_DRAWN = "found all drawn"
    TRIALS = "trials"
    BUDGET = "budget"
    INTERRUPT = "interrupt"

    @property
    def is_proof(self) -> bool:
        """Whether the best layouts are proved. Bounds of drawn times hold with probability only."""
        return self is End.FOUND_ALL

    @property
    def is_early(self) -> bool:
        """Whether the search was stopped."""
        return self in (End.BUDGET, End.INTERRUPT)


Stop = Callable[[], End | None]
"""Returns why to stop, or None to continue; called repeatedly."""


class StopRequestedError(Exception):
    """A search must stop, because its budget is spent or it was interrupted."""

    def __init__(self, why: End) -> None:
        super().__init__(why)
        self.why = why


def check(stop: Stop) -> None:
    """Raise StopRequestedError if the search must stop."""
    if why := stop():
        raise StopRequestedError(why)


def stop_after(seconds: float | None, interrupted: Callable[[], bool]) -> Stop:
    """Return a function that says why the search must stop; its time begins now."""
    start_s = time.monotonic()

    def stop() -> End | None:
        """Return the reason to stop, or None."""
        if interrupted():
            return End.INTERRUPT
        is_spent = seconds is not None and time.monotonic() - start_s >= seconds
        return End.BUDGET if is_spent else None

    return stop
