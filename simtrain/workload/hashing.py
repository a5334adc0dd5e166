"""Hashes of frozen values that are cache keys: computed once, compared by identity."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

T = TypeVar("T")


def hashed_once(cls: type[T]) -> type[T]:
    """Make a frozen dataclass (without slots) compute its hash only once."""
    hash_of_fields = cls.__hash__

    def hash_once(self: T) -> int:
        value: int | None = self.__dict__.get("_hash")
        if value is None:
            value = self.__dict__["_hash"] = hash_of_fields(self)
        return value

    def state(self: T) -> dict[str, object]:
        # Hashes of strings differ from process to process.
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    cls.__hash__ = hash_once  # type: ignore[method-assign, assignment]
    cls.__getstate__ = state  # type: ignore[method-assign, assignment]
    return cls


def shared(value: T) -> T:
    """Return the first value that equals this one.

    Caches find a shared value by identity, without comparing its fields.
    """
    first: T = _first(value)
    return first


@functools.lru_cache(maxsize=8192)
def _first(value: Any) -> Any:
    return value
