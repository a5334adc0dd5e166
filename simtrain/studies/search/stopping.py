"""Why and when a search ends early."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum


class Stopped(StrEnum):
    """Why a search ended early."""

    BUDGET = "budget"
    INTERRUPT = "interrupt"

    @property
    def sentence(self) -> str:
        """The reason, as the first of the closing sentences of a search."""
        if self is Stopped.BUDGET:
            return "The search stopped after --seconds."
        return "Interrupted."


Stop = Callable[[], Stopped | None]
"""Returns why to stop, or None to continue; called repeatedly."""


class StopRequestedError(Exception):
    """A search must stop, because its budget is spent or it was interrupted."""

    def __init__(self, why: Stopped) -> None:
        super().__init__(why)
        self.why = why


def check(stop: Stop) -> None:
    """Raise StopRequestedError if the search must stop."""
    if why := stop():
        raise StopRequestedError(why)


def never() -> None:
    """Continue: a search without a budget."""


def stop_after(seconds: float | None, interrupted: Callable[[], bool]) -> Stop:
    """Return a function that says why the search must stop; its time begins now."""
    start_s = time.monotonic()

    def stop() -> Stopped | None:
        """Return the reason to stop, or None."""
        if interrupted():
            return Stopped.INTERRUPT
        is_spent = seconds is not None and time.monotonic() - start_s >= seconds
        return Stopped.BUDGET if is_spent else None

    return stop
