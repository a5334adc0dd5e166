"""The answer in one line, in the same words and order wherever an iteration is the answer."""

from __future__ import annotations

from typing import Protocol

from simtrain.hardware.interval import Interval
from simtrain.iteration.memory.report import FitVerdict
from simtrain.scenario import Scenario
from simtrain.units import format_seconds, short_amount, significant


class Rates(Protocol):
    """An iteration's time and rates: a result, a run of a search, or a mean of draws."""

    @property
    def iteration_time_s(self) -> float: ...
    @property
    def tokens_per_s(self) -> float: ...
    @property
    def mfu(self) -> float: ...


def iteration_line(scenario: Scenario, rates: Rates, interval: Interval, fit: FitVerdict) -> str:
    """Return "9.58 s an iteration (8.3-11.1), 54.7k tokens/s, MFU 41.6%, 50.7/79.6 GiB: fits"."""
    unit = "tokens" if scenario.model.seq_length > 1 else "samples"
    rate = f"{short_amount(rates.tokens_per_s)} {unit}/s"
    return f"{_time(rates.iteration_time_s, interval)}, {rate}, MFU {rates.mfu:.1%}, {fit}"


def _time(time_s: float, interval: Interval) -> str:
    """Format a time with three digits, and its interval in the same unit with a decimal less."""
    _, unit = format_seconds(time_s).split(" ")
    size = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}.get(unit, 1e-9)
    number = significant(time_s / size, 3)
    decimals = max(len(number.partition(".")[2]) - 1, 0)
    times_s = interval.expected_s, interval.p5_s, interval.p95_s
    expected, low, high = (f"{each_s / size:.{decimals}f}" for each_s in times_s)
    ends = "or more" if interval.is_lower_bound else f"{low}-{high}"
    expects = "" if interval.has(time_s) else f"expect {expected}, "
    return f"{number} {unit} an iteration ({expects}{ends})"
