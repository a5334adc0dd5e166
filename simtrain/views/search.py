"""The best layouts that a search found, and what is proved about them: `simtrain search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.scenario import Scenario
from simtrain.schedules import default_name
from simtrain.studies.choose import policy_words
from simtrain.studies.search.explorer import Candidate
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.space import Point
from simtrain.studies.search.words import (
    in_short,
    in_words,
    num_gpus_in_words,
    setting_in_words,
)
from simtrain.units import counted, format_bytes, format_seconds, gib
from simtrain.views.kinds import NUMBER, TEXT
from simtrain.views.view import Column, Row, Sentences, Table, View

_TENSOR, _CONTEXT, _MICRO = "tensor", "con-\ntext", "micro"
_RECOMPUTE, _SEQUENCE = "re-\ncompute", "seq.\npar."
_TEXTS = (_RECOMPUTE, _SEQUENCE)
_GPUS, _LENGTHS, _FREE = "GPUs", "first/\nlast", "free\nGiB"
_INTERLEAVE = "inter-\nleave"
_USEFUL_GAP = 1.0
"""Largest distance from the optimum that says something about the best layout."""
_COLUMNS = 14
"""Columns of a row without numbers of GPUs, objectives and experts."""


def search_view(result: SearchResult) -> View:
    """Rank the best layouts and say whether they are proved to be the best."""
    cells = _without_idle_columns([_row(layout, result) for layout in result.ranked])
    columns = [
        Column("rank", "", NUMBER),
        *(Column(name, name, TEXT if name in _TEXTS else NUMBER) for name in cells[0]),
    ]
    rows = [Row([rank, *row.values()]) for rank, row in enumerate(cells, start=1)]
    data = [{"rank": rank} | _record(layout) for rank, layout in enumerate(result.ranked, start=1)]
    # Dense, to fit 80 columns.
    table = Table("layouts", _title(result), columns, rows, layout="dense", num_keys=1, data=data)
    said = [*mfu_remarks(layout.scenario for layout in result.ranked), *_notes(result)]
    return View([table, Sentences(said, style=None)])


def _title(result: SearchResult) -> str:
    return (
        f"{result.base.name} on {num_gpus_in_words(result.gpus)} of {result.base.cluster}, "
        f"by {result.objective.name}, within {format_bytes(result.limit_bytes)} per GPU"
    )


def _record(candidate: Candidate) -> dict[str, Any]:
    """Return the settings and figures of a layout in full precision."""
    scenario, run, evaluation = candidate.scenario, candidate.run, candidate.evaluation
    split = scenario.parallelism
    return {
        "num_gpus": scenario.num_gpus,
        "tensor": split.tensor,
        "pipeline": split.pipeline,
        "data": split.data,
        "context": split.context,
        "expert": split.expert,
        "interleave": split.interleave,
        "schedule": scenario.schedule,
        "micro": scenario.batch.micro,
        "recompute": evaluation.scenario.recompute.strategy,
        "sequence_parallel": split.sequence_parallel,
        "zero_stage": scenario.memory.zero_stage,
        "iteration_time_s": run.iteration_time_s,
        "tokens_per_s": run.tokens_per_s,
        "mfu": run.mfu,
        "peak_bytes": evaluation.peak_bytes,
    }


def _row(candidate: Candidate, result: SearchResult) -> dict[str, str]:
    """Return the cells of a layout, by column."""
    scenario, split, run = candidate.scenario, candidate.scenario.parallelism, candidate.run
    return {
        **({_GPUS: str(scenario.num_gpus)} if len(result.gpus) > 1 else {}),
        _TENSOR: str(split.tensor),
        "pipe-\nline": str(split.pipeline),
        "data": str(split.data),
        _CONTEXT: str(split.context),
        **_expert_columns(scenario),
        _LENGTHS: "/".join(map(str, split.own_stage_layers.values())),
        _INTERLEAVE: str(split.interleave),
        _MICRO: str(scenario.batch.micro),
        _RECOMPUTE: candidate.evaluation.scenario.recompute.strategy,
        _SEQUENCE: "yes" if split.sequence_parallel else "",
        "ZeRO": str(scenario.memory.zero_stage),
        "time": format_seconds(run.iteration_time_s),
        **result.objective.column(candidate, result),
        "MFU": f"{run.mfu:.1%}",
        "peak\nGiB": gib(candidate.evaluation.peak_bytes),
        _FREE: gib(result.limit_bytes - candidate.evaluation.peak_bytes),
    }


def _expert_columns(scenario: Scenario) -> dict[str, str]:
    """Numbers of expert-parallel ranks, and of ranks that share an expert."""
    if scenario.model.experts is None:
        return {}
    split = scenario.parallelism
    return {"ex-\npert": str(split.expert), "expert\ntensor": str(split.ranks_of_expert)}


def _without_idle_columns(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Remove columns without information; narrow and remove others to fit 80 columns."""
    has_context = any(row[_CONTEXT] != "1" for row in rows)
    has_experts = "ex-\npert" in rows[0]
    # Beyond the columns that every table has: GPUs, an objective, context, experts.
    has_lengths = any(row[_LENGTHS] for row in rows)
    num_more = len(rows[0]) - _COLUMNS + has_context + has_lengths - has_experts
    # With experts, tensor parallelism requires sequence parallelism: the column is redundant.
    left_out = {
        _CONTEXT: not has_context,
        _LENGTHS: not has_lengths,
        _SEQUENCE: has_experts,
        "MFU": num_more > 0,
        _GPUS: num_more > 2,
        _FREE: num_more > 1,
        _INTERLEAVE: num_more > 2 and all(row[_INTERLEAVE] == "1" for row in rows),
    }
    narrower = {_TENSOR: "ten-\nsor", _MICRO: "mi-\ncro"} if num_more else {}
    return [
        {narrower.get(name, name): cell for name, cell in row.items() if not left_out.get(name)}
        for row in rows
    ]


def _notes(result: SearchResult) -> list[str]:
    legal, outcome = len(result.legal.points), result.outcome
    recompute = [
        f"Recompute of number {', '.join(numbers)}: {words}."
        for words, numbers in _recompute_in_detail(result.ranked).items()
    ]
    why = [f"Number 1 compared with number 2: {result.reason}."] if result.reason else []
    alike = _alike(result)
    at_least = "at least " if result.legal.stopped else ""
    counts = (
        f"Of {result.legal.num_configurations:,} layouts, {at_least}{legal:,} are legal; "
        f"{outcome.num_fitting:,} of the {outcome.num_seen:,} that were evaluated fit; "
        f"{outcome.num_simulated:,} were simulated."
    )
    without = [f"Turned off where it cannot apply: {', '.join(result.left_out)}."]
    left_out = without if result.left_out else []
    details = [*_schedules_in_detail(result.ranked), *_layouts_in_detail(result.ranked)]
    varied = f"Varied: {in_words(result.varied) or 'nothing'}."
    if result.refinement and result.refinement.fields:
        varied += f" Refined: {in_words(result.refinement.fields)}."
    varied += f" Held: {in_words(result.held)}."
    return [
        *recompute,
        *details,
        *why,
        *alike,
        *_front(result),
        *_refined(result),
        *_failed(result),
        counts,
        *left_out,
        result.evidence.sentence,
        f"Number 1: {result.interval.sentence}",
        f"{_certainty(result)} {varied}",
    ]


def _alike(result: SearchResult) -> list[str]:
    """Say which layouts are as fast as the best, as far as predictions can tell."""
    least = result.interval.least_difference
    times_s = [layout.run.iteration_time_s for layout in result.ranked]
    num_alike = sum(time_s <= (1 + least) * min(times_s) for time_s in times_s)
    if num_alike < 2:
        return []
    return [
        f"{num_alike} of these layouts are as fast as the fastest, as far as predictions can tell "
        f"({least:.1%} or more)."
    ]


def _schedules_in_detail(ranked: Sequence[Candidate]) -> list[str]:
    """Name the schedules that are not the default ones."""
    ranks: dict[str, list[str]] = {}
    for rank, candidate in enumerate(ranked, start=1):
        scenario = candidate.scenario
        if scenario.schedule != default_name(scenario.num_chunks):
            slices = scenario.parallelism.sequence_slices
            name = scenario.schedule + (f" of {slices} slices" if slices > 1 else "")
            ranks.setdefault(name, []).append(str(rank))
    return [f"Schedule of number {', '.join(of)}: {name}." for name, of in ranks.items()]


def _layouts_in_detail(ranked: Sequence[Candidate]) -> list[str]:
    """Write the pipeline layouts."""
    ranks: dict[str, list[str]] = {}
    for rank, candidate in enumerate(ranked, start=1):
        if layout := candidate.scenario.parallelism.layout:
            ranks.setdefault(layout, []).append(str(rank))
    return [f"Layout of number {', '.join(of)}: {layout}." for layout, of in ranks.items()]


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


def _refined(result: SearchResult) -> list[str]:
    """Say what changes of single settings of the best layouts give."""
    refinement = result.refinement
    if refinement is None:
        return []
    tried = f"of {counted(refinement.num_tried, 'change')} of single settings"
    if not refinement.changes:
        return [f"None {tried} of the best layouts is better."]
    layout, best = refinement.layout, result.ranked[0]
    faster = 1 - layout.run.iteration_time_s / best.run.iteration_time_s
    changes = ", ".join(setting_in_words(*change) for change in refinement.changes.items())
    return [
        f"Refined number {refinement.rank} with {changes}: "
        f"{format_seconds(layout.run.iteration_time_s)}, {100 * faster:.1f} % less than number 1, "
        f"{gib(layout.evaluation.peak_bytes)} GiB at its peak. Best found {tried}."
    ]


def _failed(result: SearchResult) -> list[str]:
    """Name layouts that could not be evaluated."""
    failures = result.failures
    if not failures:
        return []
    others = f", and {len(failures) - 1} more (--json lists them)" if failures[1:] else ""
    return [f"Not ranked, because its simulation failed: {failures[0].in_short}{others}."]


def _certainty(result: SearchResult) -> str:
    """State what is proved about the ranking."""
    outcome, legal = result.outcome, len(result.legal.points)
    why = {"budget": "The search stopped after --seconds. ", "interrupt": "Interrupted. "}
    stopped = why[outcome.stopped] if outcome.stopped else ""
    if result.exact:
        return f"{stopped}Exact among {legal:,} layouts: no other of them is better."
    if outcome.bound is None or result.gap is None or result.gap > _USEFUL_GAP:
        simulated = counted(outcome.num_simulated, "layout")
        return f"{stopped}Best found: simulated {simulated} of {legal:,}; others can be better."
    said = f"{stopped}Evaluated {outcome.num_seen:,} of {legal:,}; "
    if outcome.num_proved:
        numbers = "number 1" if outcome.num_proved == 1 else f"numbers 1 to {outcome.num_proved}"
        return f"{said}no other is better than {numbers}."
    objective = result.objective
    limit = f"{objective.better} than {objective.words(outcome.bound)}"
    best = objective.words(objective.key(result.ranked[0].evaluation)[0])
    percent = f"{100 * result.gap:.{0 if result.gap >= 0.1 else 1}f} %"
    gap = f"at most {percent} from the optimum"
    return f"{said}no other can be {limit} (best found {best}: {gap})."


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
