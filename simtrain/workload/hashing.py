"""Hashes of frozen values that are cache keys: computed once, compared by identity."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

T = TypeVar("T")


def hashed_once(cls: type[T]) -> type[T]:
    """Make a frozen dataclass (without slots) compute its hash only once."""
    hash_of_fields = cls.__hash__

    def hash_once(self: T) -> int:
        value: int | None = self._hash  # type: ignore[attr-defined]
        if value is None:
            value = hash_of_fields(self)
            object.__setattr__(self, "_hash", value)  # `__dict__` would slow down all attributes
        return value

    def state(self: T) -> dict[str, object]:
        # Hashes of strings differ from process to process.
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    cls._hash = None  # type: ignore[attr-defined]
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
