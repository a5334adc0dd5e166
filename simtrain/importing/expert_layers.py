"""Which layers have experts, as `first_dense_layers` and `layer_frequency` say it."""

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
