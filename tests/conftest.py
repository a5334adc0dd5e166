"""Shared settings: Hypothesis draws the same examples on every run."""

import importlib.util

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
