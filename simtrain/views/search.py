"""The best layouts that a search found, and what is proved about them: `simtrain search`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.scenario import Scenario
from simtrain.schedules import default_name
from simtrain.studies.changes import setting_in_words
from simtrain.studies.on_machine import policy_words
from simtrain.studies.search.exact_search import End
from simtrain.studies.search.run import Candidate, SearchResult
from simtrain.studies.search.space import Point, in_short
from simtrain.units import counted, format_bytes, format_seconds, gib
from simtrain.views.kinds import NUMBER, TEXT
from simtrain.views.result import fit_tone
from simtrain.views.view import (
    Cell,
    Column,
    Facts,
    Heading,
    Headline,
    Paragraphs,
    Part,
    Row,
    Table,
    View,
)

_RECOMPUTE, _SEQUENCE = "re-\ncompute", "seq.\npar."
_TEXTS = (_RECOMPUTE, _SEQUENCE)
_CONTEXT, _LENGTHS = "con-\ntext", "first/\nlast"
_NONE = {_CONTEXT: "1", _LENGTHS: ""}
"""What columns without information have in each row."""
_FREE, _MFU = "free\nGiB", "MFU"
_DATA = (
    *("num_gpus", "tensor", "pipeline", "data", "context", "expert", "interleave", "schedule"),
    *("micro", "recompute", "sequence_parallel", "zero_stage"),
    *("iteration_time_s", "tokens_per_s", "mfu", "peak_bytes"),
)
MAY_NOT_FIT = "*"
"""Mark of a layout that fits by prediction, but not surely."""


def search_view(result: SearchResult, details: bool = False) -> View:
    """Say which layouts are the best, rank them, and say whether that is proved.

    With `details`, also say what was searched, and what predictions rest on.
    """
    parts: list[Part] = [
        Heading(_title(result)),
        Facts([*_answers(result)]),
        Paragraphs([*_doubts(result)], style=None),
        _table(result),
        Paragraphs([*_notes(result), _certainty(result, details)], style=None),
    ]
    if details:
        parts += [Heading("Details", is_rule=True), Paragraphs([*_details(result)], style=None)]
    return View([*parts, Headline(result.headline, fit_tone(result.best.fit))])


def _title(result: SearchResult) -> str:
    return (
        f"{result.base.name} on {counted(result.best.scenario.num_gpus, 'GPU')} of "
        f"{result.base.cluster}, within {format_bytes(result.limit_bytes)} per GPU"
    )


def _answers(result: SearchResult) -> Iterator[tuple[str, str | Cell]]:
    best, refinement = result.best, result.refinement
    name = "Best that surely fits" if best.fit.fits_surely else "Best, may not fit"
    saves = "".join(f"; {words}" for words in result.against_base(result.answer))
    if refinement and refinement.changes:
        changes = ", ".join(setting_in_words(*change) for change in refinement.changes.items())
        yield name, _answer(refinement.layout, f", {changes}{saves}")
        saves, name = "", "Without changed options"
    yield name, _answer(best, saves)
    for faster in result.faster[:1]:
        without = "" if faster.iteration_time_s < result.answer.iteration_time_s else " without"
        yield f"Faster{without}, may not fit", _answer(faster)


def _answer(layout: Candidate, more: str = "") -> Cell:
    settings = in_short(Point.of(layout.scenario))
    doubt = f": {layout.fit.doubt}" if layout.fit.doubt else ""
    return Cell(
        layout.iteration_time_s,
        f"{_figures(layout)}; tensor x pipeline x data {settings}{more}{doubt}",
    )


def _figures(layout: Candidate) -> str:
    """Return the time and the peak: "8.957 s, 52.36 GiB"."""
    return f"{format_seconds(layout.iteration_time_s)}, {gib(layout.peak_bytes)} GiB"


def _doubts(result: SearchResult) -> Iterator[str]:
    if not result.is_safe:
        yield "No layout surely fits: these fit by prediction, but may not in reality."
    alike = result.alike
    is_range = len(alike) > 2 and alike[-1] - alike[0] == len(alike) - 1
    numbers = f"{alike[0]} to {alike[-1]}" if is_range else ", ".join(map(str, alike))
    apart = f" It cannot be told apart from number {numbers}." if alike else ""
    yield f"90 % interval of number 1: {result.interval.ends}.{apart}"
    if of_own := result.best.anchored:
        yield f"Ranked by expected time, proved by simulated time. Number 1: {of_own.basis}."
    if result.evidence.is_weak:
        yield result.evidence.sentence


def _table(result: SearchResult) -> Table:
    """Rank the layouts; below them are those that are better, but may not fit."""
    layouts = [*result.ranked, *result.faster]
    ranks = [*range(1, len(result.ranked) + 1), *[None] * len(result.faster)]
    cells = _without_idle_columns([_row(layout, result) for layout in layouts])
    columns = [
        Column("rank", "", NUMBER),
        *(Column(name, name, TEXT if name in _TEXTS else NUMBER) for name in cells[0]),
    ]
    rows, data = list[Row](), list[dict[str, Any]]()
    for rank, layout, row in zip(ranks, layouts, cells, strict=True):
        fit = layout.fit
        number = f"{rank or ''}{'' if fit.fits_surely else MAY_NOT_FIT}"
        rows.append(Row([Cell(rank, number), *row.values()]))
        fits = {"fit": fit.state.value, "probability_of_fit": fit.probability}
        data.append({"rank": rank} | _record(layout) | fits)
    # Dense, to fit 80 columns.
    return Table(
        "layouts", "", columns, rows, optional=(_MFU, _FREE), layout="dense", num_keys=1, data=data
    )


def _notes(result: SearchResult) -> Iterator[str]:
    fits = [each.fit for each in (*result.ranked, *result.faster) if not each.fit.fits_surely]
    if fits:
        shares = ", ".join(f"{fit.probability:.0%}" for fit in fits)
        yield f"{MAY_NOT_FIT} may not fit. Probability that it fits, row by row: {shares}."
    yield from _by_rank("Schedule", result.ranked, _schedule_in_words)
    yield from _by_rank(
        "Layout", result.ranked, lambda each: each.scenario.parallelism.layout or ""
    )
    yield from mfu_remarks(layout.scenario for layout in result.ranked)
    if failures := result.failures:
        others = f", and {len(failures) - 1} more (see --format json)" if failures[1:] else ""
        yield f"Not ranked, because its simulation failed: {failures[0].in_short}{others}."


def _record(candidate: Candidate) -> dict[str, Any]:
    """Return what JSON has of a layout by the names of CSV; of its recompute, the strategy."""
    values = candidate.configuration | candidate.to_dict()
    values["recompute"] = values["recompute"]["strategy"]
    return {name: values[name] for name in _DATA}


def _row(candidate: Candidate, result: SearchResult) -> dict[str, str]:
    scenario, run, of_own = candidate.scenario, candidate.run, candidate.anchored
    split = scenario.parallelism
    return {
        "ten-\nsor": str(split.tensor),
        "pipe-\nline": str(split.pipeline),
        "data": str(split.data),
        _CONTEXT: str(split.context),
        **_expert_columns(scenario),
        _LENGTHS: "/".join(map(str, split.own_stage_layers.values())),
        "inter-\nleave": str(split.interleave),
        "mi-\ncro": str(scenario.batch.micro),
        _RECOMPUTE: candidate.evaluation.scenario.recompute.strategy,
        _SEQUENCE: "yes" if split.sequence_parallel else "",
        "ZeRO": str(scenario.memory.zero_stage),
        "time": format_seconds(run.iteration_time_s),
        **({"ex-\npected": format_seconds(of_own.expected_s)} if of_own else {}),
        _MFU: f"{run.mfu:.1%}",
        "peak\nGiB": gib(candidate.evaluation.peak_bytes),
        _FREE: gib(result.limit_bytes - candidate.evaluation.peak_bytes),
    }


def _expert_columns(scenario: Scenario) -> dict[str, str]:
    if scenario.model.experts is None:
        return {}
    split = scenario.parallelism
    return {"ex-\npert": str(split.expert), "expert\ntensor": str(split.ranks_of_expert)}


def _without_idle_columns(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    idle = {name for name, none in _NONE.items() if all(row[name] == none for row in rows)}
    # With experts, tensor parallelism requires sequence parallelism: the column is redundant.
    idle |= {_SEQUENCE} if "ex-\npert" in rows[0] else set()
    return [{name: cell for name, cell in row.items() if name not in idle} for row in rows]


def _schedule_in_words(candidate: Candidate) -> str:
    """Name a schedule that is not the default one."""
    scenario = candidate.scenario
    is_default = scenario.schedule == default_name(scenario.num_chunks)
    return "" if is_default else scenario.schedule


def _recompute_in_words(candidate: Candidate) -> str:
    """Describe a recompute policy that the table has no room for."""
    policy = candidate.evaluation.scenario.recompute
    words = policy_words(policy) + _kept(policy.keep_microbatches)
    return words if words != policy.strategy else ""


def _by_rank(
    what: str, ranked: Sequence[Candidate], words: Callable[[Candidate], str]
) -> Iterator[str]:
    """Yield what some layouts have, with their numbers, unless it is empty."""
    ranks: dict[str, list[str]] = {}
    for rank, candidate in enumerate(ranked, start=1):
        ranks.setdefault(words(candidate), []).append(str(rank))
    for each, numbers in ranks.items():
        if each:
            yield f"{what} of number {', '.join(numbers)}: {each}."


_ENDS = {End.BUDGET: "The search stopped after --seconds.", End.INTERRUPT: "Interrupted."}
"""Sentences for the ends that what is proved does not say."""


def _certainty(result: SearchResult, details: bool) -> str:
    """State what is proved about the ranking, and where the rest is said."""
    end = _ENDS[result.outcome.stopped] if result.outcome.stopped else ""
    return " ".join(filter(None, [end, _proved(result), "" if details else "More: --details."]))


def _proved(result: SearchResult) -> str:
    """Say how close the answer is to the optimum, or why that is not known."""
    outcome, legal, number = result.outcome, len(result.legal.points), result.fastest_place + 1
    unproved = "; with changed options it is the best found, without a proof"
    unproved *= bool(result.refinement and result.refinement.changes)
    if result.exact:
        return f"Exact among {counted(legal, 'layout')}: {_none_better(result)}{unproved}."
    if outcome.bound is None or result.gap is None:
        return (
            f"Best found: simulated {outcome.num_simulated:,} of {counted(legal, 'layout')}. How "
            "far it is from the optimum is not known, because "
            f"{legal - outcome.num_bounded:,} have no bound yet: search longer."
        )
    return (
        f"Evaluated {outcome.num_seen:,} of {legal:,}; no other that surely fits can be faster "
        f"than {format_seconds(outcome.bound)}: number {number} is at most "
        f"{100 * result.gap:.{0 if result.gap >= 0.1 else 1}f} % from the optimum{unproved}."
    )


def _none_better(result: SearchResult) -> str:
    number = f"number {result.fastest_place + 1}"
    if not result.is_safe:
        return f"none that fits is faster than {number}"
    of_safe = f"none that surely fits is faster than {number}"
    if not result.fastest_exact:
        return of_safe
    if not result.faster:
        return f"none is faster than {number}, whether it surely fits or not"
    fastest = format_seconds(result.faster[0].iteration_time_s)
    return f"{of_safe}, and none that may fit is faster than {fastest}"


def _in_words(fields: Sequence[str]) -> str:
    """List fields without their sections: "tensor, pipeline, ZeRO stage"."""
    names = ", ".join(field.rpartition(".")[2] for field in fields)
    return names.replace("_", " ").replace("zero", "ZeRO")


def _details(result: SearchResult) -> Iterator[str]:
    legal, outcome = len(result.legal.points), result.outcome
    yield from _by_rank("Recompute", result.ranked, _recompute_in_words)
    if refinement := result.refinement:
        tried = f"of {counted(refinement.num_tried, 'change')} of single settings"
        none = f"None {tried} of the best layouts is better."
        yield f"Changed options: the best found {tried}." if refinement.changes else none
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
    yield f"Varied: {_in_words(result.varied) or 'nothing'}."
    if result.refinement and result.refinement.fields:
        yield f"Refined: {_in_words(result.refinement.fields)}."
    yield f"Held: {_in_words(result.held)}."


def _kept(number: int | str) -> str:
    if number == "auto":
        return ", keeping as many microbatches as fit"
    return f", keeping microbatches: {number}" if number else ""
