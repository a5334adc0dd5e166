"""Shared settings: Hypothesis draws the same examples on every run."""

import gc
import importlib.util
import os
import pathlib

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("deterministic")

# Workers of pytest-xdist have COLUMNS=80; pages in tests have the width of a pipe everywhere.
os.environ.pop("COLUMNS", None)

# Only measurements need torch. Everything else must work, and be tested, without it.
_NEED_TORCH = [
    *("calibrate/benchmarks", "calibrate/memory", "calibrate/torch_model"),
    *("calibrate/test_chain.py", "guests/recording"),
]
collect_ignore = [] if importlib.util.find_spec("torch") else _NEED_TORCH

# A simulated iteration has hundreds of thousands of objects, few of them in cycles. With its
# default threshold the garbage collector takes a fifth of the suite's time.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish() -> None:
    """Move all imported and collected objects out of the garbage collector's view."""
    gc.freeze()


_TESTS = pathlib.Path(__file__).parent
# The longest first, so that at the end no worker waits long for another.
_LONG = (
    "test_laws",
    "guests/recording/test_recorded_steps",
    "studies/search/test_exactness",
    "calibrate/fit/test_from_records",
    "commands/test_startup",
    "studies/search/test_bounds",
    "guests/recording/test_command",
    "test_snapshots",
    "scenario/test_every_rule",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, tests of a file in order; what CI alone runs counts as slow."""
    for item in items:
        if item.get_closest_marker("ci"):
            item.add_marker("slow")
    rank = {_TESTS / f"{name}.py": place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
