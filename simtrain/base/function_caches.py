"""Empty the caches of functions, to bound the memory of studies of many different scenarios."""

from __future__ import annotations

import sys

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
