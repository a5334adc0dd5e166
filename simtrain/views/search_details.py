"""What stands behind the ranking of a search: `simtrain search --details`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simtrain.studies.changes.policies import policy_words
from simtrain.studies.search.explorer import Candidate
from simtrain.studies.search.layout_words import in_short, in_words
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.space import Point
from simtrain.units import counted, gib


def details_of(result: SearchResult) -> Iterator[str]:
    """Yield why the best layout is better, what was searched, and what predictions rest on."""
    legal, outcome = len(result.legal.points), result.outcome
    for words, numbers in _recompute_in_detail(result.ranked).items():
        yield f"Recompute of number {', '.join(numbers)}: {words}."
    if result.reason:
        yield f"Number 1 compared with number 2: {result.reason}."
    yield from _front(result)
    if refinement := result.refinement:
        tried = f"of {counted(refinement.num_tried, 'change')} of single settings"
        better = f"None {tried} of the best layouts is better."
        yield f"Options that help: the best found {tried}." if refinement.changes else better
    yield (
        f"Of {result.legal.num_configurations:,} layouts, {legal:,} are legal; "
        f"{outcome.num_fitting:,} of the {outcome.num_seen:,} that were evaluated fit; "
        f"{outcome.num_simulated:,} were simulated."
    )
    if result.left_out:
        yield f"Turned off where it cannot apply: {', '.join(result.left_out)}."
    if not result.evidence.is_weak:  # else it is said with the answers
        yield result.evidence.sentence
    yield f"Number 1: {result.interval.sentence}"
    yield f"Varied: {in_words(result.varied) or 'nothing'}."
    if result.refinement and result.refinement.fields:
        yield f"Refined: {in_words(result.refinement.fields)}."
    yield f"Held: {in_words(result.held)}."


def _front(result: SearchResult) -> list[str]:
    """Say what less memory costs: the front of time and memory, as far as it was simulated."""
    first, *others = result.outcome.front or (result.ranked[0],)
    steps = [
        f"{100 * (other.run.iteration_time_s / first.run.iteration_time_s - 1):.1f} % slower with "
        f"{gib(result.limit_bytes - other.evaluation.peak_bytes)} GiB free "
        f"({in_short(Point.of(other.scenario))})"
        for other in others
    ]
    return [f"With less memory than number 1: {'; '.join(steps)}."] if steps else []


def _recompute_in_detail(ranked: Sequence[Candidate]) -> dict[str, list[str]]:
    """Recompute policies that do not fit the table, with the ranks that use them."""
    ranks: dict[str, list[str]] = {}
    for rank, candidate in enumerate(ranked, start=1):
        policy = candidate.evaluation.scenario.recompute
        words = policy_words(policy) + _kept(policy.keep_microbatches)
        if words != policy.strategy:
            ranks.setdefault(words, []).append(str(rank))
    return ranks


def _kept(number: int | str) -> str:
    if number == "auto":
        return ", keeping as many microbatches as fit"
    return f", keeping microbatches: {number}" if number else ""
