"""Recordings collect garbage, which takes long beside what other tests have cached."""

import functools
import gc
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Move what earlier tests have left out of the garbage collector's view."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_meshes() -> Iterator[None]:
    """Clear what DTensor remembers: meshes of two tests are equal there, and their groups not."""
    yield
    for name, module in [*sys.modules.items()]:
        if name.startswith("torch.distributed.tensor"):
            for value in [*vars(module).values()]:
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    if caches := sys.modules.get("torch.distributed.tensor.debug"):
        caches._clear_sharding_prop_cache()
