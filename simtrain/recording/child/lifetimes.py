"""Which op has made the bytes that are freed, and after which op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Bytes of a storage from one op to another.

    Args:
        num_bytes: how many.
        made_by: number of the op that made them; None if they were there before the step.
        freed_after: number of the last op before they were freed; None if the step keeps them.
        is_gradient: they belong to the gradient of a parameter.
    """

    num_bytes: int
    made_by: int | None
    freed_after: int | None
    is_gradient: bool


class Lifetimes:
    """The bytes that ops make and free. Storages may grow and shrink, as those of fully_shard."""

    def __init__(self) -> None:
        self.ended: list[Lifetime] = []
        self._living: dict[int, list[tuple[int, int]]] = {}
        """Of each storage, the ops that made its bytes, with their numbers of bytes."""
        self.gradients: set[int] = set()

    def grow(self, storage: int, num_bytes: int, op: int) -> None:
        """Say that an op adds bytes to a storage."""
        self._living.setdefault(storage, []).append((op, num_bytes))

    def shrink(self, storage: int, num_bytes: int, op: int) -> None:
        """Say that bytes of a storage are freed after an op: first those that were made last."""
        made = self._living.get(storage, [])
        is_gradient = storage in self.gradients
        while num_bytes and made:
            maker, part = made.pop()
            freed = min(part, num_bytes)
            self.ended.append(Lifetime(freed, maker, op, is_gradient))
            num_bytes -= freed
            if part > freed:
                made.append((maker, part - freed))
        if num_bytes:
            self.ended.append(Lifetime(num_bytes, None, op, is_gradient))

    def forget(self, storage: int) -> None:
        """Say that a storage is gone: another one may have its address."""
        self._living.pop(storage, None)
        self.gradients.discard(storage)

    def mark_gradients(self, storages: Iterable[int]) -> None:
        """Say which storages have gradients of parameters now."""
        self.gradients.update(storages)

    def all(self) -> list[Lifetime]:
        """Return all lifetimes, those that have not ended last."""
        kept = [
            Lifetime(num_bytes, op, None, storage in self.gradients)
            for storage, made in self._living.items()
            for op, num_bytes in made
        ]
        return [*self.ended, *kept]
