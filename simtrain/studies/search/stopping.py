"""Why and how a search ends early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Stopped = Literal["budget", "interrupt"]
"""Why a search ended early."""

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
