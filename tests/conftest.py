"""Shared settings: Hypothesis draws the same examples on every run."""

import gc
import importlib.util

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

# Only `calibrate memory` needs torch; whatever else there is must work, and be tested, without it.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_torch_*.py"]

# Simulated iterations are hundreds of thousands of objects, few of them in cycles. The collector,
# which by default walks all of them every few hundred, takes a fifth of the suite's time.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish() -> None:
    """What was imported and collected is there to the end: the collector need not walk it."""
    gc.freeze()


# Longest first, so that at the end no worker waits for another's long file.
_LONG = (
    "docs",
    "torch_measure",
    "paper",
    "verdict",
    "paper_memory",
    "paper_pictures",
    "choose",
    "torch_memory",
    "cli",
    "memory",
    "torch_training",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take seconds before all others; what is in a file keeps its order."""
    rank = {f"test_{name}.py": place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
