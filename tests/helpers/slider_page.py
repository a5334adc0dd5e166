"""Times that the page of the sliders computes from its data, computed in Python
from the same data.
"""

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simtrain.durations.model import DurationModel
from simtrain.engine import LinkLoads, Program, TaskGraph, Timeline, simulate
from simtrain.engine.program import starts_of
from simtrain.iteration import simulate_iteration
from simtrain.programs.seconds import Machine
from simtrain.report.activities import Bars
from simtrain.report.result import Result
from simtrain.scenario import Scenario
from simtrain.sliders.grid import FACTORS, SLIDERS
from tests.helpers.expert_models import moe
from tests.helpers.packed_arrays import unpacked
from tests.helpers.toys import small

NETWORKED = {"tensor": 8, "data": 2, "interleave": 2, "sequence_parallel": True}
CASES: dict[str, Scenario] = {
    "interleaved": small({"interleave": 2, "tensor": 2}, recompute="full"),
    "sequence parallel": small({"tensor": 8, "pipeline": 1, "sequence_parallel": True}),
    "overlapped buckets between nodes": small(
        NETWORKED,
        memory={"zero_stage": 1},
        overlap={"data_parallel": True, "parameter_gather": True, "pipeline": True},
    ),
    "experts": moe(),
    "reduction after all passes": small(
        {"tensor": 1, "data": 4},
        model={"tied_embeddings": False},
        memory={"zero_stage": 3, "reduce_every_microbatch": False},
        overlap={"data_parallel": True},
        software={"stack": "megatron_2022", "fully_shard": True},
    ),
}
Positions = dict[str, int]


def expected(result: Result, positions: Positions) -> Result:
    """Simulate the iteration on the profile with the sliders moved."""
    profile = result.profile
    for name, position in positions.items():
        profile = SLIDERS[name].moved(profile, FACTORS[position])
    return simulate_iteration(result.plan, Machine(DurationModel(profile)))


def bars_of(result: Result) -> dict[str, NDArray[Any]]:
    """Return the bars of a timeline by lane and start; each stage has three lanes."""
    bars = Bars.of(result)
    lane = 3 * bars.stage + bars.row
    names = "activity", "chunk", "microbatch", "start_s", "end_s"
    order = np.lexsort((bars.start_s, lane))
    first = np.searchsorted(lane[order], np.arange(3 * result.num_stages + 1))
    return {"first": first, **{name: getattr(bars, name)[order] for name in names}}


def memory_of(result: Result) -> tuple[list[float], list[int]]:
    """Return the times and the values of memory over time, stage after stage."""
    curves = [result.memory_curve(stage) for stage in range(result.num_stages)]
    times_s = itertools.chain.from_iterable(curve.times_s for curve in curves)
    return [*times_s], [*itertools.chain.from_iterable(curve.held_bytes for curve in curves)]


def timeline_of(data: dict[str, Any], positions: Positions) -> Timeline:
    """Simulate the iteration from the data of the page alone."""
    values = unpacked(data["tables"]["values"])
    size = len(data["factors"])
    begins = [0, *itertools.accumulate(size ** len(axes) for axes in data["tables"]["axes"])]

    def value(table: int) -> float:
        place = 0
        for name in data["tables"]["axes"][table]:
            place = place * size + positions.get(name, data["base"])
        return float(values[begins[table] + place])

    def seconds_of(part: dict[str, Any]) -> float:
        if "sums" in part:
            return max(sum(map(value, tables)) for tables in part["sums"])
        ends = ends_s[part["pass"]]
        first, end = part.get("layers", (0, len(ends) - 1))
        return ends[end] - ends[first]

    ends_s = []
    for one in data["passes"]:
        loads = [value(part["load"]) if "load" in part else 0.0 for part in one["parts"]]
        timeline = simulate(program_of(one, [*map(seconds_of, one["parts"])], loads))
        by_layer = np.maximum.accumulate(timeline.end_s[1::2])[np.array(one["layers"], int) // 2]
        ends_s.append([0.0, *by_layer[:-1].tolist(), timeline.makespan_s])
    iteration, share = data["iteration"], math.inf
    seconds = [*map(seconds_of, iteration["parts"])]
    if iteration["links"]:
        share = value(iteration["adapter_share"])
    loads = [
        part.get("adapter_bytes", 0) / one / share if one else 0.0
        for part, one in zip(iteration["parts"], seconds, strict=True)
    ]
    return simulate(program_of(iteration, seconds, loads))


def memory_times_of(data: dict[str, Any], timeline: Timeline) -> NDArray[np.float64]:
    """Return the times of memory over time from the data of the page."""
    task, is_end = np.divmod(np.cumsum(unpacked(data["memory_moments"])), 2)
    times_s = np.where(is_end, timeline.end_s[task], timeline.start_s[task])
    return np.where(task < 0, 0.0, times_s)


def program_of(data: dict[str, Any], seconds: list[float], loads: list[float]) -> Program:
    """Return the program of a pass or of the iteration, given the times and loads of its parts."""
    names = "stream_of", "part_of", "num_after", "after"
    stream_of, part_of, counts, differences = (unpacked(data[one]) for one in names)
    after = np.repeat(np.arange(len(counts)), counts) - np.cumsum(differences)
    streams = tuple(map(str, range(data["num_streams"])))
    graph = TaskGraph(streams, stream_of, starts_of(counts), after)
    duration_s = np.array(seconds)[part_of]
    if data["links"] is None:
        return Program(graph, duration_s)
    load = np.array(loads)[part_of]
    links = [data["links"][one] if load[i] > 0 else [] for i, one in enumerate(stream_of)]
    weight = np.ones(len(load))
    if "adapter_share" in data:
        weight = 1 / np.where(load > 0, load, 1.0)
    counts = np.array([*map(len, links)])
    capacity = np.ones(1 + max(itertools.chain(*data["links"])))
    of_links = np.array([*itertools.chain(*links)])
    shared = LinkLoads(capacity, starts_of(counts), of_links, np.repeat(load, counts), weight)
    return Program(graph, duration_s, shared)
