"""What studies rank iterations by: the number to minimise, its words, and its column.

A new objective is an instance in the list at the end, or an entry point `simtrain.objectives`. The
simulator is imported in functions or for types only: `--help` lists the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from simtrain.base.plug_ins import Parts
from simtrain.errors import InputError

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.evaluation import Evaluation
    from simtrain.studies.search.result import RankedLayout

Key = tuple[float, float]
"""Ranking key, smallest first: the objective and a tie-breaker."""


@dataclass(frozen=True, slots=True, repr=False)
class Objective:
    """A quantity by which studies rank iterations.

    Args:
        name: what `--objective` takes.
        text: what it is, for the help of `--objective`.
        field: the field of the quantity in results, and its column in sweeps.
        better: what an iteration with a better value is, as in "faster than 3 s".
        value: the number to minimise for an iteration with this time and peak. It grows with both,
            so that lower bounds of them give a lower bound of it.
        words: writes a number to minimise as the quantity with its unit.
        is_maximised: whether larger quantities are better; `value` is then the negative.
        ranks_memory: whether it ranks by peak memory, and equal peaks by time; else the reverse.
        column: its column and cell in tables of layouts, if they do not have it anyway.
    """

    name: str
    text: str
    field: str
    better: str
    value: Callable[[Scenario, float, int], float]
    words: Callable[[float], str]
    is_maximised: bool = False
    ranks_memory: bool = False
    column: Callable[[RankedLayout], dict[str, str]] = lambda layout: {}

    def key_of(self, scenario: Scenario, time_s: float, peak_bytes: int) -> Key:
        """Return the ranking key of an iteration with this time and peak; it grows with both."""
        value = self.value(scenario, time_s, peak_bytes)
        return value, (time_s if self.ranks_memory else peak_bytes)

    def peak_of(self, key: Key) -> float:
        """Return the peak in a key of `key_of`: a bound, if the key is one."""
        return key[not self.ranks_memory]

    def key(self, evaluation: Evaluation) -> Key:
        """Return the ranking key of an evaluation. Those that do not fit rank last."""
        time_s = evaluation.run.iteration_time_s if evaluation.run else float("inf")
        return self.key_of(evaluation.scenario, time_s, evaluation.peak_bytes)

    def quantity(self, value: float) -> float:
        """Return the quantity of a number to minimise."""
        return -value if self.is_maximised else value

    def __repr__(self) -> str:
        return f"<Objective {self.name}>"


def _seconds(value: float) -> str:
    from simtrain.units import format_seconds

    return format_seconds(value)


def _bytes(value: float) -> str:
    from simtrain.units import format_bytes

    return format_bytes(round(value))


def _gpu_seconds(value: float) -> str:
    from simtrain.units import four_digits

    return f"{four_digits(value)} GPU-seconds"


def _price_column(layout: RankedLayout) -> dict[str, str]:
    """Return the price of a million tokens; GPU-seconds if the profile has no price."""
    from simtrain.units import four_digits

    price = layout.price_of_million_tokens
    if layout.price is None or price is None:
        return {"GPU-\nseconds": four_digits(layout.gpu_seconds)}
    return {f"{layout.price.currency}/\nM tok.": four_digits(price)}


def _negative_tokens_per_s(scenario: Scenario, time_s: float, peak_bytes: int) -> float:
    tokens = scenario.batch.global_ * scenario.model.seq_length
    return -tokens / time_s if time_s else float("-inf")


TIME = Objective(
    "time",
    "time of an iteration",
    "iteration_time_s",
    "faster",
    lambda scenario, time_s, peak_bytes: time_s,
    _seconds,
)
COST = Objective(
    "cost",
    "GPU-seconds per iteration, which on one number of GPUs rank layouts like time",
    "gpu_seconds",
    "cheaper",
    lambda scenario, time_s, peak_bytes: scenario.num_gpus * time_s,
    _gpu_seconds,
    column=_price_column,
)
MEMORY = Objective(
    "memory",
    "largest peak of a GPU",
    "peak_bytes",
    "smaller",
    lambda scenario, time_s, peak_bytes: peak_bytes,
    _bytes,
    ranks_memory=True,
)
TOKENS_PER_S = Objective(
    "tokens_per_s",
    "tokens per second",
    "tokens_per_s",
    "faster",
    _negative_tokens_per_s,
    lambda value: f"{-value:,.0f} tokens/s",
    is_maximised=True,
    column=lambda layout: {"tokens/s": f"{layout.run.tokens_per_s:,.0f}"},
)

OBJECTIVES = Parts[Objective]("objectives", Objective, (TIME, COST, MEMORY, TOKENS_PER_S))
"""The objectives by name. The first is the default."""
DEFAULT = next(iter(OBJECTIVES))

if TYPE_CHECKING:
    ObjectiveName = str
else:
    # Commands and documents list the values of these types.
    ObjectiveName = Literal[tuple(OBJECTIVES)]


def objective_of(name: str, objectives: Mapping[str, Objective] = OBJECTIVES) -> Objective:
    """Look up an objective by name; refuse an unknown one (E834)."""
    if not isinstance(name, str) or name not in objectives:
        fix = f"write one of {', '.join(objectives)}"
        raise InputError.of("E834", f"objective is {name!r}", fix=fix)
    return objectives[name]
