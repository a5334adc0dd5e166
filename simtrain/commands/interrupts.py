"""Ctrl-C: the first ends a command with its results so far, the second ends it immediately."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed.

    A second Ctrl-C raises KeyboardInterrupt.
    """
    was_pressed = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal was_pressed
        if was_pressed:
            raise KeyboardInterrupt
        was_pressed = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: was_pressed
    finally:
        signal.signal(signal.SIGINT, previous)
