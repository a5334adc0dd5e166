"""The few numbers of a profile that iteration times can show: factors on groups of its entries."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from calibrate.fit.base import Base, Data, round_significant
from calibrate.fit.result import profile_of
from simtrain.errors import InputError
from simtrain.hardware.entries import entries_of, with_changed
from simtrain.hardware.profile import SET_IN_SCENARIO, HardwareProfile

_STATED = re.compile(r"mean \|error\| ([0-9.]+)\s*%")
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(\D.*)")
_NORMAL_90 = 1.645
_MEAN_TO_DEVIATION = 1.25
"""Standard deviation of normal errors over the mean of their absolute values."""
_MOST_WIDTHS = 4.0
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor on the values of some entries of a profile.

    Its logarithm has a normal prior around 0, the base profile. The width of the prior follows from
    the errors that the entries' own fits state, or is the default if they state none.

    Args:
        label: what pages call it.
        entries: patterns of the entries' dotted names.
        least_width: width of the prior, however small the stated errors are: two clusters of the
            same GPUs differ by that much.
        default_width: width if no entry states an error.
        concerns_all: whether the time of every run depends on it. Its width is then at most a third
            of the mean |error| of iterations that the base predicted earlier: a factor that is far
            off would have added to that.
    """

    label: str
    entries: tuple[str, ...]
    least_width: float
    default_width: float
    concerns_all: bool = False

    def names(self, profile: HardwareProfile) -> list[str]:
        """Return the entries of a profile that it changes; a scenario's own values stay."""
        return [
            name
            for name, entry in entries_of(profile)
            if entry.source != SET_IN_SCENARIO
            and any(fnmatchcase(name, pattern) for pattern in self.entries)
        ]

    def width(self, profile: HardwareProfile, earlier_error: float) -> float:
        """Return the standard deviation of the prior of its logarithm.

        Args:
            profile: the base profile.
            earlier_error: mean |error| of iterations that it predicted.
        """
        entries, stated = dict(entries_of(profile)), list[float]()
        if profile.uncertainty is not None:
            stated.append(math.log1p(profile.uncertainty.value) / _NORMAL_90)
        for name in self.names(profile):
            if entries[name].source.startswith("copied from"):
                continue  # another machine's errors
            percents = map(float, _STATED.findall(entries[name].fitted_on or ""))
            stated += [_MEAN_TO_DEVIATION * percent / 100 for percent in percents]
        width = max(self.least_width, *stated) if stated else self.default_width
        return min(width, earlier_error / 3) if self.concerns_all else width


FACTORS = (
    # 5 to 60 us per kernel have been measured for eager frameworks on different hosts.
    Factor("host time per kernel", ("host.issue",), 1.1, 1.1),
    Factor(
        "rate of products and attention",
        (
            *("gemm.in_situ_speed", "gemm.sustained_flops"),
            *("gemm.by_dtype.*.sustained_flops", "fused_attention.*_efficiency"),
        ),
        0.03,
        0.1,
        concerns_all=True,
    ),
    Factor(
        "bandwidth of memory-bound kernels",
        ("memory_bound.*_bandwidth", "memory_bound.kernels.*"),
        0.05,
        0.15,
        concerns_all=True,
    ),
    Factor("rate of collectives inside a node", ("intra_node.in_situ_speed",), 0.1, 0.1),
    Factor("rate across nodes", ("inter_node.*efficiency",), 0.2, 0.2),
)
"""What a fit to iterations may change. Latencies of kernels are not among them: the host's time per
kernel has nearly the same effect."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of one factor in a profile.

    Args:
        factor: the factor.
        width: standard deviation of the prior of its logarithm.
        upper: largest logarithm with which the profile is legal, at most four widths.
    """

    factor: Factor
    width: float
    upper: float

    @property
    def lower(self) -> float:
        return -_MOST_WIDTHS * self.width


def entries_to_fit(base: Base, earlier_error: float) -> list[Entries]:
    """Return the factors that a profile has entries of; arguments are as for `Factor.width`."""
    fitted = [factor for factor in FACTORS if factor.names(base.profile)]
    widths = [factor.width(base.profile, earlier_error) for factor in fitted]
    return [
        Entries(factor, width, _largest(base.data, factor, _MOST_WIDTHS * width))
        for factor, width in zip(fitted, widths, strict=True)
    ]


def scaled_profile(
    profile: HardwareProfile, factors: Sequence[Entries], logarithms: Sequence[float]
) -> HardwareProfile:
    """Return a profile with factors on its entries; it is not checked."""
    for entries, logarithm in zip(factors, logarithms, strict=True):
        ratio = math.exp(logarithm)
        for name in entries.factor.names(profile):
            profile = with_changed(profile, name, partial(operator.mul, ratio))
    return profile


def scaled_data(data: Data, factor: Factor, logarithm: float, source: str, fitted_on: str) -> Data:
    """Return a profile's data with a factor on its entries, each marked as fitted.

    Args:
        data: data of the base profile.
        factor: the factor.
        logarithm: its logarithm.
        source: what it is fitted to; the entry's value before and its source follow.
        fitted_on: the runs and their errors.
    """
    ratio = math.exp(logarithm)

    def entry(old: Data) -> Data:
        before = f"{source}: {ratio:.4g} times {old['value']}, which is from: {old['source']}"
        return old | {
            "value": _scaled(old["value"], ratio),
            "source": before,
            "fitted_on": fitted_on,
        }

    def section(old: Data, prefix: str) -> Data:
        return {name: changed(value, f"{prefix}{name}") for name, value in old.items()}

    def changed(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            return value
        if "value" not in value or "source" not in value:
            return section(value, f"{name}.")
        is_of_factor = any(fnmatchcase(name, pattern) for pattern in factor.entries)
        return entry(value) if is_of_factor else value

    return section(data, "")


def _scaled(value: Any, ratio: float) -> Any:
    if not isinstance(value, str):
        return round_significant(value * ratio)
    match = _QUANTITY.fullmatch(value.strip())
    assert match, "the profile was read with this value"
    return f"{float(match[1]) * ratio:.4g} {match[2]}"


def _largest(data: Data, factor: Factor, most: float) -> float:
    """Return the largest logarithm of a factor up to `most` with which the profile is legal."""

    def is_legal(logarithm: float) -> bool:
        try:
            profile_of(scaled_data(data, factor, logarithm, "trial", "trial"))
        except InputError:
            return False
        return True

    if is_legal(most):
        return most
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_legal(middle) else (low, middle)
    return low
