"""Loops over arrays, written once: run as plain Python, or compiled by numba on demand."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@functools.cache
def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function over arrays, with the functions of this package that it calls.

    The machine code is kept on disk. numba takes 0.5 s to load, so it is imported here.
    """
    from numba import njit
    from numba.extending import register_jitable

    for name in loop.__code__.co_names:
        if inspect.isfunction(called := loop.__globals__.get(name)):
            register_jitable(called)
    return njit(cache=True)(loop)


def run_loop(loop: Callable[..., Any], *arrays: NDArray[Any], is_compiled: bool) -> Any:
    """Call a loop with arrays, compiled or as plain Python.

    Plain Python gets lists, whose elements it reads several times faster than those of arrays.
    """
    if is_compiled:
        return compiled(loop)(*arrays)
    return loop(*(array.tolist() for array in arrays))
