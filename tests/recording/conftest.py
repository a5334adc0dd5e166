"""Recordings collect garbage, which takes long beside what other tests have cached."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Move what earlier tests have left out of the garbage collector's view."""
    gc.collect()
    gc.freeze()
