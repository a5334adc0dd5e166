"""Why one configuration is better than another, from where their time goes."""

from __future__ import annotations

from dataclasses import asdict

from simtrain.report.render import PART_LABELS
from simtrain.search.looker import Found
from simtrain.search.objective import Objective
from simtrain.search.words import num_gpus_in_words
from simtrain.units import format_bytes

_WORTH_SAYING = 0.005
"""Of the other's iteration time."""


def reason(winner: Found, other: Found, objective: Objective) -> str:
    """In what the winner is better, and which parts of the iteration make the difference.

    Percentages are of the other's iteration time.
    """
    key, other_key = objective.key(winner.evaluation), objective.key(other.evaluation)
    memory = _memory(winner, other)
    if key == other_key:
        return "as good in all that counts"
    if objective is Objective.MEMORY:
        return memory if key[0] < other_key[0] else f"as small, and {_time(winner, other)}"
    if key[0] == other_key[0]:
        return f"as fast, and {memory}"
    gpus, other_gpus = winner.scenario.num_gpus, other.scenario.num_gpus
    instead = f"{num_gpus_in_words([gpus])} instead of {other_gpus}, " if gpus != other_gpus else ""
    return instead + _time(winner, other)


def _memory(winner: Found, other: Found) -> str:
    saved = other.evaluation.peak_bytes - winner.evaluation.peak_bytes
    return f"{format_bytes(abs(saved))} {'less' if saved >= 0 else 'more'} at the peak"


def _time(winner: Found, other: Found) -> str:
    run, other_run = winner.run, other.run
    gain = 1 - run.iteration_time_s / other_run.iteration_time_s
    differences = _differences(winner, other)
    said = [one for one in differences if abs(one[0]) >= _WORTH_SAYING] or differences[:1]
    parts = ", ".join(_words(share, label) for share, label in said)
    return f"{_words(-gain, 'time')}: {parts}"


def _differences(winner: Found, other: Found) -> list[tuple[float, str]]:
    """By how much each part is longer, as a share of the other's iteration, the largest first."""
    parts, other_parts = asdict(winner.breakdown), asdict(other.breakdown)
    differences = [
        ((seconds - other_parts[name]) / other.run.iteration_time_s, PART_LABELS[name])
        for name, seconds in parts.items()
    ]
    return sorted(differences, key=lambda one: -abs(one[0]))


def _words(share: float, label: str) -> str:
    percent = f"{100 * abs(share):.0f}" if abs(share) >= 0.095 else f"{100 * abs(share):.1f}"
    return f"{percent} % {'less' if share < 0 else 'more'} {label}"
