"""Remembers what was computed for the keys that were asked for most recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentCache(Generic[Key, Value]):
    """Values by key. Above a total size, values unused for the longest time are dropped.

    `size` is the size of a value, 1 by default, and `limit` that of all together.
    """

    def __init__(self, limit: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit, self._size, self._total = limit, size, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[Key], Value]) -> Value:
        """The value of a key, made if it is not remembered."""
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
