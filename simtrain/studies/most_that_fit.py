"""How many of its forward passes each stage can keep whole in the memory that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Guesses by interpolation before halving: memory is nearly linear in what is kept.
_INTERPOLATIONS = 3

PeaksOf = Callable[[tuple[int, ...]], Sequence[int]]
"""Peak bytes of each stage when each keeps so many."""


def most_that_fit(
    windows: Sequence[int], peaks_of: PeaksOf, capacity_bytes: int
) -> tuple[int, ...]:
    """For each stage the most, up to its window, with which it fits; 0 where not even that does.

    What a stage keeps changes its own peak only, and never lowers it: all stages are searched at
    the same time.
    """
    ends = peaks_of((0,) * len(windows)), peaks_of(tuple(windows))
    brackets = [
        _Bracket(capacity_bytes, 0, window, low_peak, high_peak)
        for window, low_peak, high_peak in zip(windows, *ends, strict=True)
    ]
    attempt = 0
    while not all(bracket.is_found for bracket in brackets):
        guesses = tuple(
            bracket.guess(interpolate=attempt < _INTERPOLATIONS) for bracket in brackets
        )
        for bracket, guess, peak in zip(brackets, guesses, peaks_of(guesses), strict=True):
            bracket.narrow(guess, peak)
        attempt += 1
    return tuple(bracket.found for bracket in brackets)


@dataclass(slots=True)
class _Bracket:
    """Between `low`, which fits, and `high`, which does not, unless both ends are on one side."""

    capacity: int
    low: int
    high: int
    low_peak: int
    high_peak: int

    @property
    def is_found(self) -> bool:
        one_sided = self.high_peak <= self.capacity or self.low_peak > self.capacity
        return one_sided or self.high - self.low <= 1

    @property
    def found(self) -> int:
        return self.high if self.high_peak <= self.capacity else self.low

    def guess(self, *, interpolate: bool) -> int:
        if self.is_found:
            return self.found
        span = self.high - self.low
        free, missing = self.capacity - self.low_peak, self.high_peak - self.low_peak
        step = span * free // missing if interpolate else span // 2
        return self.low + min(max(step, 1), span - 1)

    def narrow(self, number: int, peak: int) -> None:
        if not self.low < number < self.high:
            return
        if peak <= self.capacity:
            self.low, self.low_peak = number, peak
        else:
            self.high, self.high_peak = number, peak
