"""A cache of the most recently used values, with a limit on their total size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentCache(Generic[Key, Value]):
    """A least-recently-used cache.

    Args:
        limit: total size of all values; above it, the least recently used values are dropped.
        size: returns the size of a value; 1 by default.
    """

    def __init__(self, limit: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit, self._size, self._total = limit, size, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[Key], Value]) -> Value:
        """Return the value of a key; make it if it is not cached."""
        try:
            value = self._values[key]
        except KeyError:
            value = self._values[key] = make(key)
            self._total += self._size(value)
            while self._total > self._limit:
                self._total -= self._size(self._values.popitem(last=False)[1])
        else:
            self._values.move_to_end(key)
        return value
