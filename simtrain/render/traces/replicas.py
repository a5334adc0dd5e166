"""Write one drawn iteration as a trace in Chrome's format: a process per replica.

Threads are the streams of a replica: compute of each stage, links between stages, buckets. So a
barrier shows which replica the others wait for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path

from simtrain.base.output_folder import as_path, check_suffix
from simtrain.render.traces.chrome import metadata, microseconds
from simtrain.render.traces.formats.chrome import Chrome
from simtrain.render.traces.slices import nanoseconds
from simtrain.render.traces.write import open_trace
from simtrain.studies.variation.traced import TracedDraw


def check_replica_trace(file: Path) -> None:
    """Refuse a name without the suffix of a Chrome trace (E117)."""
    check_suffix(file, Chrome.suffixes, "traces of draws")


def write_replica_trace(draw: TracedDraw, file: str | Path) -> None:
    """Write the trace, and replace an existing file.

    Raises:
        InputError: the suffix is not that of a Chrome trace (E117), or the file cannot be written.
    """
    file = as_path(file)
    check_replica_trace(file)
    header = {"displayTimeUnit": "ms", "traceName": f"{draw.name}, draw {draw.number}"}
    with open_trace(file) as target:
        target.write(f'{json.dumps(header)[:-1]}, "traceEvents": [\n'.encode())
        for place, replica in enumerate(draw.replicas):
            events = ",\n".join(_of_replica(draw, place, replica))
            target.write(((",\n" if place else "") + events).encode())
        target.write(b"\n]}\n")


def _of_replica(draw: TracedDraw, place: int, replica: int) -> Iterator[str]:
    """Yield the events of a replica, each as the text of a JSON object."""
    graph = draw.graph
    yield metadata(replica, "process_name", name=f"replica {replica}")
    yield metadata(replica, "process_sort_index", sort_index=replica)
    for stream in sorted(graph.used_streams):
        yield metadata(replica, "thread_name", stream, name=graph.streams[stream])
        yield metadata(replica, "thread_sort_index", stream, sort_index=stream)
    starts, ends = (nanoseconds(times[:, place]).tolist() for times in (draw.start_s, draw.end_s))
    for task, stream in enumerate(graph.stream_of.tolist()):
        if ends[task] > starts[task]:
            yield (
                f'{{"ph": "X", "cat": "{graph.kind(task)}", "name": {quoted(graph.name_of(task))}, '
                f'"pid": {replica}, "tid": {stream}, "ts": {microseconds(starts[task])}, '
                f'"dur": {microseconds(ends[task] - starts[task])}}}'
            )
