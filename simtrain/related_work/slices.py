"""Lengths of the slices of token-level pipelines: TeraPipe's dynamic programme.

A slice of i tokens after j others takes the time of its forward and its backward pass on the
slowest stage. With D slices on K stages, the pipeline takes the sum of all of them, once for each
microbatch, and K - 1 times the longest one (Li et al. 2021, arXiv 2102.07988, Equation 5). For each
longest time, the shortest sum is found slice by slice (Algorithm 1). Sequences can also be grouped
into microbatches of several sizes, each with slices of its own (Section 3.4): a knapsack of the
shortest sums, with one longest time for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.errors import InputError, Location
from simtrain.iteration.report.stage_kernels import passes_of
from simtrain.related_work.terapipe import TeraPipe
from simtrain.scenario import Scenario
from simtrain.studies.on_machine import refuse_program
from simtrain.studies.simulation import simulate

OnProgress = Callable[[str, int, int], None]
_LENGTHS, _SLICES = "parallelism.slice_lengths", "parallelism.sequence_slices"


@dataclass(frozen=True, slots=True)
class Slicing(PlainData):
    """A way to cut sequences, and the iteration with it.

    Args:
        name: in words.
        lengths: tokens of each slice.
        iteration_time_s: simulated.
        peak_bytes: of the fullest stage.
    """

    json_fields: ClassVar = keys("name lengths iteration_time_s peak_bytes")

    name: str
    lengths: tuple[int, ...]
    iteration_time_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class Microbatch(PlainData):
    """A microbatch of the programme.

    Args:
        sequences: of the microbatch.
        lengths: tokens of each slice.
    """

    json_fields: ClassVar = keys("sequences lengths")

    sequences: int
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SliceSearch(PlainData):
    """Slices that were found, beside others.

    Args:
        schedule: that runs them.
        parts: parts of the sequence of which each slice has a multiple.
        slicing: the lengths of the dynamic programme.
        predicted_s: its own time of the passes of a pipeline.
        others: whole sequences and equal slices.
        sizes: of microbatches that were tried, in sequences.
        micro: the size of microbatches with these slices.
        mix: microbatches of sizes of their own, the best ones of the programme; not simulated.
        mix_predicted_s: their time by the programme.
    """

    json_fields: ClassVar = keys(
        "schedule parts found=slicing predicted_s others sizes micro mix mix_predicted_s"
    )

    schedule: str
    parts: int
    slicing: Slicing
    predicted_s: float
    others: tuple[Slicing, ...]
    sizes: tuple[int, ...]
    micro: int
    mix: tuple[Microbatch, ...]
    mix_predicted_s: float


def find_slices(
    scenario: Scenario,
    parts: int = 8,
    on_progress: OnProgress = lambda *_: None,
    micros: Sequence[int] = (),
) -> SliceSearch:
    """Find the lengths of slices with which a pipeline is shortest, and simulate them.

    Args:
        scenario: its stages, microbatches and machine.
        parts: a slice has a multiple of 1/parts of the sequence.
        micros: sizes of microbatches, in sequences, to choose from; by default the scenario's. All
            microbatches of a scenario are equally large: the best of these is simulated, and the
            best mix of them is predicted by the programme.
        on_progress: gets a phase, and how many of its iterations are simulated.

    Raises:
        InputError: the sequence has no such parts, or stages have several chunks (E894), or the
            scenario cannot have slices.
    """
    refuse_program(scenario)
    if scenario.parallelism.interleave > 1:
        raise InputError.of(
            "E894",
            f"parallelism.interleave is {scenario.parallelism.interleave}",
            fix="write parallelism.interleave: 1, or a schedule with one chunk per stage",
            reason="the programme counts each slice once on every stage",
        )
    unit = _unit(scenario, parts)
    bases = {
        micro: _with_slices(scenario.replace({"batch.micro": micro}))
        for micro in sorted({*micros} or {scenario.batch.micro})
    }
    times = {
        micro: _pass_times(base, parts, unit, on_progress, f"{micro} " * bool(micros))
        for micro, base in bases.items()
    }
    stages = scenario.parallelism.pipeline
    ways = {
        micro: best_slices(times[micro], parts, stages, base.num_microbatches)
        for micro, base in bases.items()
    }
    micro = min(ways, key=lambda each: ways[each][1])
    lengths, predicted_s = ways[micro]
    base = bases[micro]
    sequences = scenario.batch.global_ // scenario.parallelism.data
    mix, mix_s = best_microbatches(times, parts, stages, sequences)
    return SliceSearch(
        base.schedule,
        parts,
        _simulated(base, "found", tuple(unit * number for number in lengths)),
        predicted_s,
        tuple(_others(base, scenario, parts)),
        tuple(bases),
        micro,
        tuple(Microbatch(size, tuple(unit * each for each in cut)) for size, cut in mix),
        mix_s,
    )


def best_slices(
    times: Mapping[tuple[int, int], float], parts: int, stages: int, microbatches: int = 1
) -> tuple[tuple[int, ...], float]:
    """Return the lengths of slices, in parts, with which a pipeline is shortest, and its time.

    Args:
        times: [(length, parts before it)], seconds of a slice's passes; slices without a time are
            not taken.
        parts: of a sequence.
        stages: of the pipeline.
        microbatches: sequences, or groups of them, that follow each other.

    The longest slice counts `stages - 1` times in addition, so for each limit of the longest the
    sum is the shortest way from 0 to `parts` (Li et al. 2021, Algorithm 1).
    """
    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    for limit_s in sorted({*times.values()}):
        if (stages - 1) * limit_s >= best[0]:
            break
        lengths, sum_s = _shortest_sum(times, parts, limit_s)
        total = microbatches * sum_s + (stages - 1) * limit_s
        if total < best[0]:
            best = total, lengths
    return best[1], best[0]


def best_microbatches(
    times: Mapping[int, Mapping[tuple[int, int], float]], parts: int, stages: int, sequences: int
) -> tuple[tuple[tuple[int, tuple[int, ...]], ...], float]:
    """Return the size and the slices of each microbatch, and the time of the shortest pipeline.

    Args:
        times: by size of a microbatch, in sequences, what `best_slices` takes.
        parts, stages: as in `best_slices`.
        sequences: of an iteration, which all microbatches together have.

    For each limit of the longest slice, the shortest sum of each size is found as in `best_slices`,
    and the sizes are chosen by a knapsack (Li et al. 2021, Section 3.4).
    """
    best: tuple[float, tuple[tuple[int, tuple[int, ...]], ...]] = (math.inf, ())
    limits = {seconds for each in times.values() for seconds in each.values()}
    for limit_s in sorted(limits):
        if (stages - 1) * limit_s >= best[0]:
            break
        ways = {size: _shortest_sum(each, parts, limit_s) for size, each in times.items()}
        sums, last = [0.0, *[math.inf] * sequences], [0] * (sequences + 1)
        for end in range(1, sequences + 1):
            for size, (_, sum_s) in ways.items():
                if size <= end and sums[end - size] + sum_s < sums[end]:
                    sums[end], last[end] = sums[end - size] + sum_s, size
        total = sums[sequences] + (stages - 1) * limit_s
        if total < best[0]:
            sizes = _lengths(last, sequences)
            best = total, tuple((size, ways[size][0]) for size in sizes)
    return best[1], best[0]


def _shortest_sum(
    times: Mapping[tuple[int, int], float], parts: int, limit_s: float
) -> tuple[tuple[int, ...], float]:
    """Return the slices of a sequence with the shortest sum, none longer than a limit, and it."""
    sums, last = [0.0, *[math.inf] * parts], [0] * (parts + 1)
    for end in range(1, parts + 1):
        for length in range(1, end + 1):
            seconds = times.get((length, end - length), math.inf)
            if seconds <= limit_s and sums[end - length] + seconds < sums[end]:
                sums[end], last[end] = sums[end - length] + seconds, length
    return (_lengths(last, parts), sums[parts]) if sums[parts] < math.inf else ((), math.inf)


def _lengths(last: Sequence[int], parts: int) -> tuple[int, ...]:
    """Return the lengths from the last slice of each prefix."""
    lengths: list[int] = []
    while parts:
        lengths.insert(0, last[parts])
        parts -= last[parts]
    return tuple(lengths)


def _unit(scenario: Scenario, parts: int) -> int:
    """Return the tokens of a part."""
    length, step = scenario.model.seq_length, scenario.slice_unit
    if length % (parts * step) == 0:
        return length // parts
    most = length // step
    legal = [number for number in range(2, min(most, 64) + 1) if most % number == 0]
    nearest = min(legal, key=lambda number: abs(number - parts), default=None)
    raise InputError.of(
        "E894",
        f"model.seq_length is {length}, which has no {parts} parts of a multiple of {step} tokens",
        Location("parts"),
        fix=f"write parts={nearest}" if nearest else "change model.seq_length",
        reason="a slice has whole tokens on each tensor-parallel rank",
    )


def _with_slices(scenario: Scenario) -> Scenario:
    """Return a scenario whose schedule runs slices: terapipe unless it has another one."""
    if scenario.schedule_family.cuts_sequences:
        return scenario.replace({_LENGTHS: None})
    return scenario.replace({"schedule": TeraPipe.name, _SLICES: 2})


def _cut(base: Scenario, lengths: tuple[int, ...]) -> Scenario:
    """Return a scenario with these slices; one slice is a whole sequence in GPipe's order."""
    if len(lengths) == 1:
        whole = {"schedule": "gpipe", _LENGTHS: None, _SLICES: 1}
        return base.replace(whole | {"parallelism.slice_balance": "tokens"})
    cut: dict[str, object] = {_LENGTHS: lengths, _SLICES: len(lengths)}
    return base.replace(cut | {"parallelism.slice_balance": "tokens"})


def _pass_times(
    base: Scenario, parts: int, unit: int, on_progress: OnProgress, label: str
) -> dict[tuple[int, int], float]:
    """Return the seconds of each slice's passes on the slowest stage, by length and place.

    One microbatch of a replica is simulated for each slice, with the tokens before and after it as
    slices of their own.
    """
    single = base.replace({"batch.global": base.batch.micro * base.parallelism.data})
    slices = [(n, before) for n in range(1, parts + 1) for before in range(parts - n + 1)]
    times: dict[tuple[int, int], float] = {}
    for done, (length, before) in enumerate(slices):
        on_progress(f"passes of {label}slices", done, len(slices))
        after = parts - length - before
        lengths = tuple(unit * number for number in (before, length, after) if number)
        result = simulate(_cut(single, lengths))
        number = int(before > 0)
        times[length, before] = max(
            _seconds_of(passes_of(result, stage), stage, number)
            for stage in range(base.parallelism.pipeline)
        )
    return times


def _seconds_of(passes: Mapping[str, tuple[float, float]], stage: int, number: int) -> float:
    return math.fsum(
        end_s - start_s for start_s, end_s in (passes[f"{stage}{kind}{number}"] for kind in "FB")
    )


def _simulated(base: Scenario, name: str, lengths: tuple[int, ...]) -> Slicing:
    result = simulate(_cut(base, lengths))
    peak = max(stage.peak_bytes for stage in result.memory_report.stages)
    return Slicing(name, lengths, result.iteration_time_s, peak)


def _others(base: Scenario, scenario: Scenario, parts: int) -> list[Slicing]:
    """Return whole sequences, and all numbers of equal slices that divide the parts."""
    length = scenario.model.seq_length
    numbers = [number for number in range(1, parts + 1) if parts % number == 0]
    others = []
    for number in numbers:
        name = "whole sequences" if number == 1 else f"{number} equal slices"
        others.append(_simulated(base, name, (length // number,) * number))
    return others
