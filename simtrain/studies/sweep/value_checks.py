"""Check that each value of an axis is valid for its field.

Combinations of values may be illegal; these are counted. A value that is invalid by itself is an
error in the sweep file. So each axis is checked alone, with the others at their first value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simtrain.base.strict_yaml import YamlDocument, document_with, overlay
from simtrain.errors import InputError, Problem
from simtrain.hardware.load import profile_of
from simtrain.scenario import Scenario
from simtrain.studies.sweep.axes import SweepAxis, location_of
from simtrain.studies.sweep.fields import BASE, base_of

# Fields that select or change the profile; loading it for every other value would be slow.
_OF_THE_PROFILE = {"base", "cluster", "hardware"}


def check_values(
    document: YamlDocument, axes: Sequence[SweepAxis], base: str, bases: Mapping[str, YamlDocument]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Validate all values, and refuse all invalid ones together.

    Returns:
        The clusters of the grid, and the distinct currencies of their prices, as "h100_sxm in USD".
    """
    problems: dict[Problem, None] = {}
    clusters: dict[str, None] = {}
    currencies: dict[str, str] = {}
    for varied, chosen in _walk(axes):
        try:
            scenario = _scenario(document, axes, chosen, base, bases)
            if varied is None or any(path[0] in _OF_THE_PROFILE for path in varied.paths):
                costs = profile_of(scenario).running_costs
                clusters[scenario.cluster] = None
                if costs and costs.price:
                    currency = costs.price.value.currency
                    currencies.setdefault(currency, f"{scenario.cluster} in {currency}")
        except InputError as error:
            problems |= dict.fromkeys(error.problems)
            if varied is None:
                # An error at the first point would repeat at every other point.
                break
    if problems:
        raise InputError(problems)
    return tuple(clusters), tuple(currencies.values())


def _walk(axes: Sequence[SweepAxis]) -> Iterator[tuple[SweepAxis | None, tuple[int, ...]]]:
    """Yield the first point of the grid, then each axis with the others at their first value."""
    first = (0,) * len(axes)
    yield None, first
    for number, axis in enumerate(axes):
        # Only the last value of a range: the values between are no worse.
        start = max(1, len(axis) - 1) if isinstance(axis.values, range) else 1
        for position in range(start, len(axis)):
            yield axis, (*first[:number], position, *first[number + 1 :])


def _scenario(
    document: YamlDocument,
    axes: Sequence[SweepAxis],
    chosen: Sequence[int],
    base: str,
    bases: Mapping[str, YamlDocument],
) -> Scenario:
    """The scenario at a point, with the position of each value in the file."""
    places = list(zip(axes, chosen, strict=True))
    settings = [setting for axis, position in places for setting in axis.assignments(position)]
    built = bases[base_of(settings, base)]
    for axis, position in places:
        for path, value in axis.assignments(position):
            if path != BASE:
                location = location_of(document, axis, position, path)
                built = overlay(built, document_with(path, value, location))
    return Scenario.from_document(built)
