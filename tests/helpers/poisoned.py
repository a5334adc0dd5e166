"""Arrays whose memory nobody has filled hold garbage, so that a result that reads it changes.

Run as a script it prints what a scenario gives: `python -m tests.helpers.poisoned BYTE`, with the
scenario as JSON on the standard input, and -1 for memory as it comes.
"""

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from simtrain.errors import InputError
from simtrain.iteration.programs import iteration_builder
from simtrain.iteration.programs.pass_tasks import RecentCache
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate

GARBAGE = (0x00, 0x03, 0x7F, 0xA5, 0xFF)
"""Bytes that fill arrays: small, large and negative integers, tiny and huge floats, and NaN."""


@contextmanager
def poisoned(byte: int) -> Iterator[None]:
    """Fill what `np.empty` and `np.empty_like` return with a byte, without what is cached."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("empty", "empty_like"):
            patch.setattr(np, name, _filled(getattr(np, name), byte))
        patch.setattr(iteration_builder, "_CACHE", RecentCache(1))
        forget()
        yield
    forget()


def _filled(make: Callable[..., Any], byte: int) -> Callable[..., Any]:
    @functools.wraps(make)
    def filled(*arguments: Any, **options: Any) -> Any:
        array = make(*arguments, **options)
        if isinstance(array, np.ndarray) and not array.dtype.hasobject:
            array[...] = np.frombuffer(bytes([byte]) * array.dtype.itemsize, array.dtype)[0]
        return array

    return filled


def forget() -> None:
    """Clear the caches of the modules that build and time iterations."""
    rooms = ("simtrain.schedules", "simtrain.workload", "simtrain.iteration", "simtrain.durations")
    for name, module in [*sys.modules.items()]:
        for cache in vars(module).values() if name.startswith(rooms) else ():
            if hasattr(cache, "cache_clear"):
                cache.cache_clear()


def fingerprint(scenario: Scenario) -> str:
    """Return a hash of the times of all tasks, and of all figures of a simulated iteration."""
    result = simulate(scenario, Evaluator().profile_of(scenario))  # on a machine of its own
    times = result.timeline.start_s.tobytes() + result.timeline.end_s.tobytes()
    return hashlib.sha256(times + json.dumps(result.to_dict()).encode()).hexdigest()


def outcome(scenario: Scenario) -> str:
    """Return the fingerprint of a scenario, or the error of a cluster that cannot run it."""
    try:
        return fingerprint(scenario)
    except InputError as error:
        return str(error)


def main() -> None:
    scenario, byte = Scenario.model_validate(json.load(sys.stdin)), int(sys.argv[1])
    with poisoned(byte) if byte >= 0 else nullcontext():
        print(outcome(scenario))


if __name__ == "__main__":
    main()
