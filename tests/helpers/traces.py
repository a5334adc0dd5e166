"""Reader of traces in JSON and in Perfetto's format, with one result for both."""

import gzip
import itertools
import json
import pathlib
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from simtrain.iteration.report.result import Result
from simtrain.render.traces.write import write_trace
from tests.helpers.toys import ONE_STAGE, run, small, zero

ON_HOST = {"offload_optimizer": True, "offload_gradients": True, "delayed_update": True}
RESULTS = {
    "pipeline": run(small()),
    "buckets": run(small({"data": 2}, overlap={"data_parallel": True}, recompute="full")),
    "one stage": run(small(ONE_STAGE)),
    "states on the host": run(zero(2, memory=ON_HOST)),
}
Event = dict[str, Any]
Thread = tuple[str, str]
"""The rank, such as "node 1, GPU 0, rank 8, stage 2", and the name of its stream."""
Moment = tuple[Thread, int]


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
    arrows: list[tuple[Moment, Moment]] = field(default_factory=list)

    def check_no_overlap(self) -> None:
        """Assert that the slices of each thread follow one another."""
        for slices in self.slices.values():
            for one, other in itertools.pairwise(slices):
                assert one.start_ns <= one.end_ns <= other.start_ns


def traced(result: Result, folder: pathlib.Path, suffix: str, **chosen: Any) -> ReadTrace:
    """Write a trace, and return its content as read back from the file."""
    file = folder / f"t{suffix}"
    write_trace(result, file, **chosen)
    return read_perfetto(file) if suffix == ".pftrace" else read_chrome(read_json(file))


def read_json(file: pathlib.Path) -> dict[str, Any]:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        data: dict[str, Any] = json.load(lines)
    return data


def read_chrome(data: dict[str, Any]) -> ReadTrace:
    """Return the content of a Chrome trace."""
    events: list[Event] = data["traceEvents"]
    found, starts = ReadTrace(), dict[int, Moment]()
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
            case "s":
                starts[one["id"]] = thread, time
            case "f":
                found.arrows.append((starts[one["id"]], (thread, time)))
    return found


def read_perfetto(file: pathlib.Path) -> ReadTrace:
    """Return the content of a trace in Perfetto's format, by the rules of its trace processor.

    The processor sorts events by time, and keeps the order of packets at equal times. It reports
    errors for: events without a sequence or of an unknown track; tracks described twice or below
    more than ten others; ends without a beginning; counters without a value; arrows that begin
    twice or end before they begin. Packets without flags and without a clock need no earlier
    packets for names, defaults or clocks (src/trace_processor/importers/proto:
    proto_trace_reader.cc, track_event_tokenizer.cc, track_event_tracker.cc;
    importers/common/flow_tracker.cc).
    """
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace, event = protos.Trace.FromString(file.read_bytes()), protos.TrackEvent
    tracks, threads = dict[int, Any](), dict[int, Thread]()
    found, starts = ReadTrace(), dict[int, Moment]()
    ends, open_ = dict[int, Moment](), dict[int, tuple[str, int]]()
    for packet in trace.packet:
        fields = {field.name for field, _ in packet.ListFields()}
        if packet.HasField("track_descriptor"):
            assert fields == {"track_descriptor", "trusted_packet_sequence_id"}
            track = packet.track_descriptor
            assert track.uuid not in tracks
            assert track.parent_uuid in tracks or not track.parent_uuid
            tracks[track.uuid] = track
            names = _path(tracks, track.uuid)
            assert len(names) <= 10
            threads[track.uuid] = _rank(", ".join(names[:2])), names[-1] * (len(names) > 2)
        else:
            assert fields == {"track_event", "timestamp", "trusted_packet_sequence_id"}
    events = [one for one in trace.packet if one.HasField("track_event")]
    for packet in sorted(events, key=lambda one: one.timestamp):
        one, time = packet.track_event, packet.timestamp
        thread = threads[one.track_uuid]
        assert not starts.keys() & one.flow_ids and starts.keys() >= {*one.terminating_flow_ids}
        if one.type == event.TYPE_SLICE_BEGIN:
            assert one.track_uuid not in open_
            open_[one.track_uuid] = one.name, time
            starts |= dict.fromkeys(one.flow_ids, (thread, time))
            ends |= dict.fromkeys(one.terminating_flow_ids, (thread, time))
        elif one.type == event.TYPE_SLICE_END:
            found.slices[thread].append(Slice(*open_.pop(one.track_uuid), time))
        else:
            assert tracks[one.track_uuid].HasField("counter")
            assert one.HasField("counter_value") or one.HasField("double_counter_value")
            value = one.counter_value if one.HasField("counter_value") else one.double_counter_value
            found.counters[thread].append((time, value))
    assert not open_
    assert starts.keys() == ends.keys()
    found.arrows += [(starts[number], ends[number]) for number in starts]
    return found


def _path(tracks: dict[int, Any], uuid: int) -> list[str]:
    """Return the names of a track and of its parents, from the top."""
    names = []
    while uuid:
        names.insert(0, tracks[uuid].name)
        uuid = tracks[uuid].parent_uuid
    return names


def _rank(name: str) -> str:
    """Return the rank in the name of a process or of nested tracks."""
    words = ("node", "GPU", "rank", "stage")
    found = [re.search(rf"{word} (\d+)", name) for word in words]
    return ", ".join(one[0] for one in found if one) if all(found) else name
