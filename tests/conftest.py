"""Shared settings: Hypothesis draws the same examples on every run."""

import gc
import importlib.util
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

# What measures needs torch; whatever else there is must work, and be tested, without it.
_NEED_TORCH = [
    *("calibrate/benchmarks", "calibrate/memory", "calibrate/torch_model"),
    *("calibrate/test_chain.py", "calibrate/test_several_ranks.py"),
]
collect_ignore = [] if importlib.util.find_spec("torch") else _NEED_TORCH

# Simulated iterations are hundreds of thousands of objects, few of them in cycles. The collector,
# which by default walks all of them every few hundred, takes a fifth of the suite's time.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish() -> None:
    """What was imported and collected is there to the end: the collector need not walk it."""
    gc.freeze()


_TESTS = pathlib.Path(__file__).parent
# Longest first, so that at the end no worker waits for another's long file.
_LONG = (
    "docs/test_docs",
    "calibrate/benchmarks/test_measure",
    "paper/test_tables",
    "studies/test_remedy",
    "paper/test_memory",
    "figures/test_paper",
    "studies/test_choose",
    "calibrate/memory/test_memory",
    "commands/test_cli",
    "memory/test_stages",
    "calibrate/torch_model/test_training",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take seconds before all others; what is in a file keeps its order."""
    rank = {_TESTS / f"{name}.py": place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
