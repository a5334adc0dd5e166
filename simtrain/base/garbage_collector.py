"""Python's garbage collector, switched off while caches fill."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector for the evaluation of many scenarios.

    They create no reference cycles but fill caches, which every full collection would scan: a tenth
    of a sweep's time, a quarter of its first minute, and a third of a search over experts.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
