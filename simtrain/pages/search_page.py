"""What a search found, as a page for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from simtrain.hardware.profile import NOT_CALIBRATED
from simtrain.pages.tables import table_of
from simtrain.scenario import Scenario
from simtrain.search.looker import Found
from simtrain.search.objective import Objective
from simtrain.search.result import SearchResult
from simtrain.search.words import num_gpus_in_words
from simtrain.studies.choose import policy_words
from simtrain.units import format_bytes, format_seconds

_TENSOR, _CONTEXT, _MICRO = "tensor", "con-\ntext", "micro"
_RECOMPUTE, _SEQUENCE = "re-\ncompute", "seq.\npar."
_TEXTS = (_RECOMPUTE, _SEQUENCE)


def search_page(result: SearchResult) -> RenderableType:
    """The report of `simtrain search`."""
    found = _without_idle_columns([_row(one, result) for one in result.ranked])
    headings = (">", *(name if name in _TEXTS else f">{name}" for name in found[0]))
    rows = [[Text(str(rank)), *map(Text, row.values())] for rank, row in enumerate(found, start=1)]
    title = Text(_title(result), style="bold")
    # Narrow enough for 80 columns.
    narrow: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": 0}
    table = table_of(*headings, title=title, rows=rows, no_wrap=True, **narrow)
    return Group(table, *map(Text, _notes(result)))


def _title(result: SearchResult) -> str:
    return (
        f"{result.base.name} on {num_gpus_in_words(result.gpus)} of {result.base.cluster}, "
        f"by {result.objective.value}, within {format_bytes(result.limit_bytes)} a GPU"
    )


def _row(found: Found, result: SearchResult) -> dict[str, str]:
    """What the table says of a configuration, by column."""
    scenario, split, run = found.scenario, found.scenario.parallelism, found.run
    objectives = {
        Objective.COST: _cost(found, result),
        Objective.TOKENS_PER_S: {"tokens/s": f"{run.tokens_per_s:,.0f}"},
    }
    return {
        _TENSOR: str(split.tensor),
        "pipe-\nline": str(split.pipeline),
        "data": str(split.data),
        _CONTEXT: str(split.context),
        **_expert_columns(scenario),
        "inter-\nleave": str(split.interleave),
        _MICRO: str(scenario.batch.micro),
        _RECOMPUTE: found.evaluation.scenario.recompute.strategy,
        _SEQUENCE: "yes" if split.sequence_parallel else "",
        "ZeRO": str(scenario.memory.zero_stage),
        "time": format_seconds(run.iteration_time_s),
        **objectives.get(result.objective, {}),
        "MFU": f"{run.mfu:.1%}",
        "peak": format_bytes(found.evaluation.peak_bytes),
    }


def _expert_columns(scenario: Scenario) -> dict[str, str]:
    """Ranks that hold different experts, and ranks that share one."""
    if scenario.model.experts is None:
        return {}
    split = scenario.parallelism
    return {"ex-\npert": str(split.expert), "expert\ntensor": str(split.ranks_of_expert)}


def _without_idle_columns(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows without columns that say nothing, and narrower if there are more than usual."""
    has_context = any(row[_CONTEXT] != "1" for row in rows)
    has_experts = "ex-\npert" in rows[0]
    # With experts, tensor parallelism goes with sequence parallelism: the legal points say so.
    left_out = {_CONTEXT: not has_context, _SEQUENCE: has_experts, "MFU": has_context & has_experts}
    narrower = {_TENSOR: "ten-\nsor", _MICRO: "mi-\ncro"} if has_context or has_experts else {}
    return [
        {narrower.get(name, name): cell for name, cell in row.items() if not left_out.get(name)}
        for row in rows
    ]


def _cost(found: Found, result: SearchResult) -> dict[str, str]:
    """What a million tokens cost, or where the profile has no price, what an iteration takes."""
    price = result.price_of_tokens(found)
    if result.price is None or price is None:
        return {"GPU-\nseconds": f"{found.gpu_seconds:.4g}"}
    return {f"{result.price.currency}/\nM tok.": f"{price:.4g}"}


def _notes(result: SearchResult) -> list[str]:
    legal, seen = len(result.legal.points), result.seen
    recompute = [
        f"Recompute of number {', '.join(numbers)}: {words}."
        for words, numbers in _recompute_in_detail(result.ranked).items()
    ]
    why = [f"Number 1 against number 2: {result.reason}."] if result.reason else []
    counted = (
        f"Of {result.legal.num_configurations:,} configurations {legal:,} are legal; "
        f"{seen.num_fitting:,} of the {seen.num_seen:,} that were looked at fit; "
        f"{seen.num_simulated:,} had to be simulated."
    )
    without = [f"Left out where it cannot apply: {', '.join(result.left_out)}."]
    source = [] if result.profile.calibrated else [NOT_CALIBRATED]
    left_out = without if result.left_out else []
    return [*recompute, *why, counted, *left_out, *source, _certainty(result)]


def _certainty(result: SearchResult) -> str:
    """What is proved of the ranking."""
    seen, legal = result.seen, len(result.legal.points)
    why = {"budget": "The search stopped after --seconds. ", "interrupt": "Interrupted. "}
    stopped = why[seen.stopped] if seen.stopped else ""
    if result.exact:
        return f"{stopped}None of the others is better."
    if seen.bound is None or result.gap is None:
        return f"{stopped}Not exact: {seen.num_seen / legal:.1%} of the legal ones were looked at."
    said = f"{stopped}Looked at {seen.num_seen:,} of {legal:,}; "
    if seen.num_proved:
        numbers = "number 1" if seen.num_proved == 1 else f"numbers 1 to {seen.num_proved}"
        return f"{said}no other is better than {numbers}."
    best = result.ranked[0]
    limit = {
        Objective.TIME: "faster than " + format_seconds(seen.bound),
        Objective.COST: f"cheaper than {seen.bound:.4g} GPU-seconds",
        Objective.MEMORY: "smaller than " + format_bytes(round(seen.bound)),
        Objective.TOKENS_PER_S: f"faster than {-seen.bound:,.0f} tokens/s",
    }[result.objective]
    found = {
        Objective.TIME: format_seconds(best.run.iteration_time_s),
        Objective.COST: f"{best.gpu_seconds:.4g}",
        Objective.MEMORY: format_bytes(best.evaluation.peak_bytes),
        Objective.TOKENS_PER_S: f"{best.run.tokens_per_s:,.0f}",
    }[result.objective]
    percent = f"{100 * result.gap:.{0 if result.gap >= 0.1 else 1}f} %"
    gap = f"at most {percent} from the optimum"
    return f"{said}no other can be {limit} (best found {found}: {gap})."


def _recompute_in_detail(ranked: Sequence[Found]) -> dict[str, list[str]]:
    """What the table has no room for, and the ranks of those that recompute so."""
    ranks: dict[str, list[str]] = {}
    for rank, found in enumerate(ranked, start=1):
        policy = found.evaluation.scenario.recompute
        words = policy_words(policy) + _kept(policy.keep_microbatches)
        if words != policy.strategy:
            ranks.setdefault(words, []).append(str(rank))
    return ranks


def _kept(number: int | str) -> str:
    if number == "auto":
        return ", keeping as many microbatches as fit"
    return f", keeping microbatches: {number}" if number else ""
