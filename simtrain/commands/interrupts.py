"""Ctrl-C that ends a command with what it has, and a second one that ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C was pressed. The second one raises KeyboardInterrupt."""
    was_pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal was_pressed
        if was_pressed:
            raise KeyboardInterrupt
        was_pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: was_pressed
    finally:
        signal.signal(signal.SIGINT, before)
