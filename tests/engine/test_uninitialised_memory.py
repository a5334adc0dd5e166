"""No time depends on memory that nobody has filled."""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.random_programs import random_program, times_by_engine


def filled(make: Callable[..., Any], byte: int) -> Callable[..., Any]:
    """Return `np.empty`, whose arrays hold a byte."""

    @functools.wraps(make)
    def with_garbage(*arguments: Any, **options: Any) -> Any:
        array = make(*arguments, **options)
        if isinstance(array, np.ndarray) and not array.dtype.hasobject:
            array[...] = np.frombuffer(bytes([byte]) * array.dtype.itemsize, array.dtype)[0]
        return array

    return with_garbage


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])  # also huge floats, and NaN
def test_programs_do_not_read_garbage(byte: int) -> None:
    number = random.Random(byte)
    for _ in range(15):
        program = random_program(number)
        expected = times_by_engine(program)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("empty", "empty_like"):
                patch.setattr(np, name, filled(getattr(np, name), byte))
            found = times_by_engine(program)
        for engine, times in expected.items():
            assert all(map(np.array_equal, times, found[engine]))
