"""Which layers have experts or attend to all tokens, as a scenario's fields say it."""

from __future__ import annotations

from collections.abc import Sequence


def dense_and_frequency(has_experts: Sequence[bool]) -> tuple[int, int] | None:
    """The dense layers at the start, and of which number a layer with experts is a multiple.

    Args:
        has_experts: of each layer.

    Returns None if no two such numbers describe these layers.
    """
    numbers = range(len(has_experts))
    first = next((number for number in numbers if has_experts[number]), None)
    if first is None:
        return None
    wanted = [number for number in numbers if has_experts[number]]
    for frequency in range(1, len(has_experts) + 1):
        multiples = [number for number in numbers if number % frequency == 0]
        if wanted == [number for number in multiples if number >= first]:
            return (0 if wanted == multiples else first), frequency
    return None


def full_attention_every(has_window: Sequence[bool]) -> int | None:
    """The number whose multiples, counted from 1, are the layers without an attention window.

    Args:
        has_window: of each layer; some have one and some have none.

    Returns None if there is no such number.
    """
    every = has_window.index(False) + 1
    expected = [number % every != 0 for number in range(1, len(has_window) + 1)]
    return every if [*has_window] == expected and every > 1 else None
