"""Number of forward passes per stage that can keep all activations within the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Guesses by interpolation before bisection: memory is nearly linear in the kept passes.
_INTERPOLATIONS = 3

PeaksOf = Callable[[tuple[int, ...]], Sequence[int]]
"""Returns the peak bytes per stage for these numbers of kept passes per stage."""


def most_that_fit(
    windows: Sequence[int], peaks_of: PeaksOf, capacity_bytes: int
) -> tuple[int, ...]:
    """Find the largest number of kept passes per stage that fits; 0 if even 0 does not fit.

    Kept passes of a stage change only its own peak and never lower it, so all stages are searched
    at the same time.

    Args:
        windows: the largest number per stage.
        peaks_of: peak bytes per stage.
        capacity_bytes: memory of a GPU.
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
    """A bracket: `low` fits and `high` does not, unless both ends are on the same side."""

    capacity: int
    low: int
    high: int
    low_peak: int
    high_peak: int

    @property
    def is_found(self) -> bool:
        """Whether no number is left between the bounds."""
        one_sided = self.high_peak <= self.capacity or self.low_peak > self.capacity
        return one_sided or self.high - self.low <= 1

    @property
    def found(self) -> int:
        """The largest number that fits, or the smallest if none fits."""
        return self.high if self.high_peak <= self.capacity else self.low

    def guess(self, *, interpolate: bool) -> int:
        """Return the next number to try, or the result if it is found."""
        if self.is_found:
            return self.found
        span = self.high - self.low
        free, missing = self.capacity - self.low_peak, self.high_peak - self.low_peak
        step = span * free // missing if interpolate else span // 2
        return self.low + min(max(step, 1), span - 1)

    def narrow(self, number: int, peak: int) -> None:
        """Move a bound to a number with a known peak, if it is between the bounds."""
        if not self.low < number < self.high:
            return
        if peak <= self.capacity:
            self.low, self.low_peak = number, peak
        else:
            self.high, self.high_peak = number, peak
