"""What studies do to their process: caches, garbage collection and priority."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Caches of functions in studies of many different scenarios: emptied, and filled fast.

_PACKAGE = __name__.partition(".")[0]


def forget_cached() -> None:
    """Empty every `functools.lru_cache` with a limit of the package's modules.

    Each has a limit, but thousands of tapes and passes of large models are gigabytes. What a
    function without a limit returns (compiled loops, folders) stays.
    """
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == _PACKAGE:
            for function in vars(module).values():
                parameters = getattr(function, "cache_parameters", None)
                if callable(parameters) and parameters()["maxsize"] is not None:
                    function.cache_clear()


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


# Differences between operating systems: processors, limits on workers.

MOST_WORKERS = 61 if sys.platform == "win32" else None
"""Windows waits for at most 64 handles at a time; a process pool needs three of them."""


def num_processors() -> int:
    """Number of processors that this process may use."""
    # Only Linux has sched_getaffinity.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
