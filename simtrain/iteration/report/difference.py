"""Difference of two iteration times, split into causes that add up to it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from simtrain.base.plain_data import Number, PlainData, Sentence, joined_sentences, keys
from simtrain.base.values import asdict, dataclass
from simtrain.errors import InputError, wrong_type
from simtrain.hardware.interval import RatioInterval, ratio_interval, shared_errors
from simtrain.iteration.report.breakdown import CAUSE_LABELS, Breakdown
from simtrain.iteration.report.result import Result, check_is_result
from simtrain.scenario.resolved import settings_of

_MIN_SHARE = 0.005
"""Smallest cause that a sentence mentions, as a share of the base's iteration time."""
_LABELS = "name", "description"


# No slots: a cached property needs the dictionary of its object.
@dataclass(frozen=True)
class Difference(PlainData):
    """Difference of the iteration time of `other` from that of `base`.

    The causes are the parts of the breakdown, as means over the stages. On every stage the parts
    add up to the iteration time, so the causes add up to the difference.
    """

    json_fields: ClassVar = keys(
        """difference_s causes_s reason reason_numbers has_same_model tokens_ratio
        ratio_per_token=ratio can_be_told=ratio.can_be_told changed_fields"""
    )

    base: Result
    other: Result

    def __repr__(self) -> str:
        return f"<Difference: {self.time}; {self.causes}>"

    @property
    def difference_s(self) -> float:
        return self.other.iteration_time_s - self.base.iteration_time_s

    @property
    def causes_s(self) -> dict[str, float]:
        base_s = self.base.breakdown_s
        return {name: seconds - base_s[name] for name, seconds in self.other.breakdown_s.items()}

    @property
    def time(self) -> Sentence:
        return time_in_words(self.other.breakdown, self.base.breakdown)

    @property
    def causes(self) -> Sentence:
        return causes_in_words(self.other.breakdown, self.base.breakdown)

    @property
    def changed_fields(self) -> dict[str, tuple[Any, Any]]:
        """Values (base, other) of the fields that differ, by dotted name.

        A value is None if a scenario lacks the field. Name and description are left out.
        """
        base, other = settings_of(self.base.scenario), settings_of(self.other.scenario)
        both = {name: (base.get(name), other.get(name)) for name in base | other}
        return {
            name: values
            for name, values in both.items()
            if name not in _LABELS and values[0] != values[1]
        }

    @property
    def has_same_model(self) -> bool:
        return self.base.scenario.model == self.other.scenario.model

    @property
    def tokens_ratio(self) -> float:
        """Tokens per iteration of `other`, divided by those of `base`."""
        base, other = (
            result.scenario.batch.global_ * result.scenario.model.seq_length
            for result in (self.base, self.other)
        )
        return other / base

    @cached_property
    def ratio(self) -> RatioInterval:
        """Where the measured time per token of `other`, divided by that of `base`, lies."""
        base, other = self.base, self.other
        shared = shared_errors((base.kind, other.kind), (base.shape, other.shape), base.anchors)
        ratio = ratio_interval(base.interval, other.interval, shared)
        ends = (ratio.p5, ratio.expected, ratio.p95)
        return RatioInterval(*(end / self.tokens_ratio for end in ends))

    @property
    def reason(self) -> str:
        return str(self._reason)

    @property
    def reason_numbers(self) -> list[dict[str, Any]]:
        return self._reason.numbers_json()

    @property
    def _reason(self) -> Sentence:
        return Sentence(self.time, ": ", self.causes, " (percent of the first's time)")


def compare(*results: Result) -> tuple[Difference, ...]:
    """Compare each of the other results of `simulate` with the first.

    Raises:
        InputError: there are fewer than two results (E843), or an argument is no result (E114).
    """
    for result in results:
        if isinstance(result, list | tuple):
            raise wrong_type(result, "Result", "write compare(*results)")
        check_is_result(result)
    if len(results) < 2:
        message = f"a comparison needs two results, not {len(results)}"
        raise InputError.of("E843", message, fix="write compare(first, second)")
    return tuple(Difference(results[0], other) for other in results[1:])


def time_in_words(breakdown: Breakdown, other: Breakdown) -> Sentence:
    """Format the change of the iteration time from `other`, in percent of `other`."""
    return _words(breakdown.total_s / other.total_s - 1, "time")


def causes_in_words(breakdown: Breakdown, other: Breakdown) -> Sentence:
    """Format the changes of the parts from `other`, in percent of its total, the largest first."""
    seconds, total_s = asdict(other), other.total_s
    differences = [
        ((part_s - seconds[name]) / total_s, CAUSE_LABELS[name])
        for name, part_s in asdict(breakdown).items()
    ]
    differences.sort(key=lambda difference: -abs(difference[0]))
    shown = [
        difference for difference in differences if abs(difference[0]) >= _MIN_SHARE
    ] or differences[:1]
    return joined_sentences(", ", (_words(share, label) for share, label in shown))


def _words(share: float, label: str) -> Sentence:
    percent = f"{100 * abs(share):.0f}" if abs(share) >= 0.095 else f"{100 * abs(share):.1f}"
    return Sentence(Number(share, f"{percent} %"), f" {'less' if share < 0 else 'more'} {label}")
