"""Reader of traces in JSON."""

import gzip
import itertools
import json
import pathlib
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simtrain.iteration.report.result import Result
from simtrain.render.traces.write import write_trace
from tests.helpers.toys import ONE_STAGE, run, small, zero

RESULTS = {
    "pipeline": run(small()),
    "buckets": run(small({"data": 2}, overlap={"data_parallel": True}, recompute="full")),
    "one stage": run(small(ONE_STAGE)),
    "states on the host": run(zero(2, memory={"offload_optimizer": True})),
}
Event = dict[str, Any]
Thread = tuple[str, str]
"""The rank, such as "node 1, GPU 0, rank 8, stage 2", and the name of its stream."""


class Slice(NamedTuple):
    """Named interval, in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int


@dataclass
class ReadTrace:
    """Content of a trace: slices and counters of each thread, in the order of the file."""

    slices: dict[Thread, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[Thread, list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def check_no_overlap(self) -> None:
        """Assert that the slices of each thread follow one another."""
        for slices in self.slices.values():
            for one, other in itertools.pairwise(slices):
                assert one.start_ns <= one.end_ns <= other.start_ns


def traced(result: Result, folder: pathlib.Path, **chosen: Any) -> ReadTrace:
    """Write a trace, and return its content as read back from the file."""
    file = folder / "t.json"
    write_trace(result, file, **chosen)
    return read_chrome(read_json(file))


def read_json(file: pathlib.Path) -> dict[str, Any]:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        data: dict[str, Any] = json.load(lines)
    return data


def read_chrome(data: dict[str, Any]) -> ReadTrace:
    """Return the content of a Chrome trace."""
    events: list[Event] = data["traceEvents"]
    found = ReadTrace()
    ranks: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for one in events:
        if one["ph"] == "M" and one["name"] == "process_name":
            ranks[one["pid"]] = _rank(one["args"]["name"])
        elif one["ph"] == "M" and one["name"] == "thread_name":
            threads[one["pid"], one["tid"]] = one["args"]["name"]
    for one in events:
        if one["ph"] == "M" or one["name"].startswith("ProfilerStep#"):
            continue
        rank, time = ranks[one["pid"]], round(one["ts"] * 1000)
        thread = rank, threads.get((one["pid"], one.get("tid", -1)), "")
        match one["ph"]:
            case "X":
                name = re.sub("^(ncclDevKernel|Memcpy DtoD) ", "", one["name"])
                slice_ = Slice(name, time, time + round(one["dur"] * 1000))
                found.slices[thread].append(slice_)
            case "C":
                (value,) = one["args"].values()
                found.counters[rank, one["name"]].append((time, value))
    return found


def _rank(name: str) -> str:
    """Return the rank in the name of a process."""
    words = ("node", "GPU", "rank", "stage")
    found = [re.search(rf"{word} (\d+)", name) for word in words]
    return ", ".join(one[0] for one in found if one) if all(found) else name
