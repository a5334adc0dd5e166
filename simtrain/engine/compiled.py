"""Runs loops over arrays, as plain Python or compiled by numba."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simtrain.base.extras import is_installed

Ints = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LARGE = 200_000
"""Number of tasks for which plain Python takes about as long as loading numba, 0.3 s."""
_num_simulated = 0


@functools.cache
def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function over arrays, and the functions of its module that it calls, at any depth.

    The machine code is cached on disk. numba takes a third of a second to load, so it is imported
    here.
    """
    from numba import njit
    from numba.extending import register_jitable

    for called in _called_functions(loop):
        register_jitable(called)
    return njit(cache=True)(loop)


def _called_functions(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    for name in function.__code__.co_names:
        if inspect.isfunction(called := function.__globals__.get(name)):
            yield called
            yield from _called_functions(called)


def runs_compiled(num_tasks: int = 0) -> bool:
    """Return whether loops run compiled, when a program of `num_tasks` tasks is simulated next.

    numba is loaded when all programs so far are so large that loading it would have paid off. So
    loops take at most about twice the time of the better choice, which is not known in advance.
    """
    global _num_simulated
    _num_simulated += num_tasks
    return has_numba() and (_num_simulated >= LARGE or "numba" in sys.modules)


@functools.cache
def has_numba() -> bool:
    """Whether numba is installed."""
    return is_installed("numba")


def run_loop(
    loop: Callable[..., Any],
    arrays: tuple[Any, ...],
    results: tuple[NDArray[Any], ...] = (),
    *,
    is_compiled: bool,
) -> Any:
    """Call a loop with its input arrays (or named tuples of arrays), and arrays for its results.

    Plain Python gets lists, because it reads their elements several times faster.
    """
    if is_compiled:
        return compiled(loop)(*arrays, *results)
    lists = [array.tolist() for array in results]
    returned = loop(*map(_as_lists, arrays), *lists)
    for array, values in zip(results, lists, strict=True):
        array[...] = values
    return returned


def _as_lists(value: Any) -> Any:
    return type(value)(*map(_as_lists, value)) if isinstance(value, tuple) else value.tolist()
