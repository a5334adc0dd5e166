"""Frozen values that are looked up far more often than they are made."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

T = TypeVar("T")


def hashed_once(cls: type[T]) -> type[T]:
    """Make a frozen dataclass (without slots) remember its hash."""
    hash_of_fields = cls.__hash__

    def hash_once(self: T) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash_of_fields(self)
        return known

    def state(self: T) -> dict[str, object]:
        # Hashes of strings differ from process to process.
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    cls.__hash__ = hash_once  # type: ignore[method-assign, assignment]
    cls.__getstate__ = state  # type: ignore[method-assign, assignment]
    return cls


def shared(value: T) -> T:
    """The first value that equals this one.

    Caches compare a shared value with itself by identity, and not field by field.
    """
    first: T = _first(value)
    return first


@functools.lru_cache(maxsize=8192)
def _first(value: Any) -> Any:
    return value
