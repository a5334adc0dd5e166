"""What draws of an iteration say: the distribution of its time, and the reasons for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine.compiled import Floats
from simtrain.iteration.report.remarks import RunReport
from simtrain.studies.variation.distribution import Distribution
from simtrain.units import format_seconds


@dataclass(frozen=True, slots=True)
class Reason(PlainData):
    """A reason why iterations take longer than without variation.

    Args:
        name: of the source of variation, as its field in the section `variation`, or `barrier`.
        words: what varies or waits.
        change: mean time with this source alone relative to none, minus 1; of the barrier, with
            all sources relative to replicas that do not wait for each other.
    """

    json_fields: ClassVar = keys("name words change")

    name: str
    words: str
    change: float


@dataclass(frozen=True, slots=True)
class UsedEntry(PlainData):
    """An entry of a hardware profile that the section `variation` leaves to it.

    Args:
        entry: its name in the section.
        value: as the profile has it.
        source: of the value.
    """

    json_fields: ClassVar = keys("entry value source")

    entry: str
    value: float
    source: str


@dataclass(frozen=True, slots=True)
class DrawnTimes(PlainData):
    """The iteration of a scenario, drawn many times.

    Args:
        scenario: its name.
        draws: number of draws.
        seed: of the random numbers.
        usual_s: time of the iteration without variation.
        time: distribution of the time from one iteration to the next.
        num_ranks: ranks of the scenario.
        num_simulated_ranks: ranks that are simulated each.
        reasons: what makes iterations longer, the most first.
        without_effect: fields of the scenario that change no draw.
        entries: entries of a profile that were used.
        entries_of: the profile of these entries.
        times_s: [draws], the drawn times, without work between iterations.
    """

    json_fields: ClassVar = keys(
        """draws seed usual_s iteration_time_s=time slowdown num_simulated_ranks reasons
        without_effect entries_of entries"""
    )

    scenario: str | None
    draws: int
    seed: int
    usual_s: float
    time: Distribution
    num_ranks: int
    num_simulated_ranks: int
    reasons: tuple[Reason, ...]
    without_effect: tuple[str, ...]
    entries: tuple[UsedEntry, ...]
    entries_of: str
    times_s: Floats = field(repr=False)

    def __repr__(self) -> str:
        ends = f"{format_seconds(self.time.mean)}, {format_seconds(self.usual_s)} without variation"
        return f"<DrawnTimes {self.scenario or 'unnamed'}: {ends}, {self.draws} draws>"

    @property
    def slowdown(self) -> float:
        """Mean time relative to the time without variation."""
        return self.time.mean / self.usual_s


@dataclass(frozen=True, slots=True)
class VariedRun(PlainData):
    """What `simtrain run --json` prints: a result, what is said of it, and its draws.

    Args:
        report: the result, and what is said of it.
        variation: the iteration drawn many times, with --draws or a section `variation`.
    """

    json_fields: ClassVar = keys("**report variation")
    json_omits_none: ClassVar = frozenset({"variation"})

    report: RunReport
    variation: DrawnTimes | None
