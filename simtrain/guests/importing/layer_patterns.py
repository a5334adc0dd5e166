"""Convert patterns of layers (with experts, with a window) to the fields of a scenario."""

from __future__ import annotations

from collections.abc import Sequence


def dense_and_frequency(has_experts: Sequence[bool]) -> tuple[int, int] | None:
    """Return first_dense_layers and layer_frequency of layers; None if there are none such."""
    numbers = range(len(has_experts))
    wanted = [number for number in numbers if has_experts[number]]
    if not wanted:
        return None
    for frequency in range(1, len(has_experts) + 1):
        multiples = [number for number in numbers if number % frequency == 0]
        if wanted == [number for number in multiples if number >= wanted[0]]:
            return (0 if wanted == multiples else wanted[0]), frequency
    return None


def full_attention_every(has_window: Sequence[bool]) -> int | None:
    """Return n if exactly every nth layer, counted from 1, has no attention window; or None."""
    every = has_window.index(False) + 1
    expected = [number % every != 0 for number in range(1, len(has_window) + 1)]
    return every if [*has_window] == expected and every > 1 else None
