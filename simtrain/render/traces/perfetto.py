"""Write a trace in Perfetto's own format, with tracks nested as node, GPU and stream.

Times are integer nanoseconds of the trace's clock. Nothing is interned, so packets need no flags.
https://perfetto.dev/docs/reference/synthetic-track-event explains the messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import IO

from simtrain.render.traces.events import Counter, TraceEvents
from simtrain.render.traces.slices import (
    PASS_THREADS,
    SEND_THREADS,
    STAGE_THREAD,
    THREADS,
    Slice,
)

_SEQUENCE = 1
"""All packets are of one sequence; its number is any but 0."""


def write_perfetto(events: TraceEvents, target: IO[bytes]) -> None:
    """Write all ranks, and the critical path as a track of its own. It needs `perfetto`."""
    writer, stages = _Writer(target), range(events.result.num_stages)
    needs = defaultdict[int, list[int]](list)
    for stage in stages:
        for arrow in events.arrows(stage):
            needs[arrow.consumer].append(arrow.transfer)
    path = writer.track("critical path")
    writer.slices(((path, slice_) for slice_ in events.critical_path()), {})
    nodes: dict[int, int] = {}
    for stage in stages:
        rank, node, gpu = events.place(stage)
        if node not in nodes:
            nodes[node] = writer.track(f"node {node}")
        parent = writer.track(f"GPU {gpu} (rank {rank}, stage {stage})", nodes[node])
        tracks = dict[int, int]()
        for thread in events.threads(stage):
            # Streams inside passes are nested below the stage.
            is_inside = thread in PASS_THREADS
            above = tracks[STAGE_THREAD] if is_inside else parent
            tracks[thread] = writer.track(THREADS[thread], above)
        writer.slices(((tracks[slice_.thread], slice_) for slice_ in events.slices(stage)), needs)
        memory = writer.track("memory", parent, {"unit": "UNIT_SIZE_BYTES"})
        writer.counter(memory, events.memory_bytes(stage))
        utilization = writer.track("FLOPs utilization", parent, {"unit_name": "%"})
        writer.counter(utilization, events.utilization_percent(stage))
        writer.flush()


class _Writer:
    """Writes packets in chunks. Perfetto reads consecutive `Trace` messages as one trace."""

    def __init__(self, target: IO[bytes]) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

        self.target, self.trace, self.num_tracks = target, Trace(), 0
        self.begin, self.end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
        self.value = TrackEvent.TYPE_COUNTER

    def flush(self) -> None:
        """Write the collected packets to the file, and clear them."""
        self.target.write(self.trace.SerializeToString())
        self.trace.Clear()

    def track(
        self, name: str, parent: int | None = None, counter: Mapping[str, str] | None = None
    ) -> int:
        """Add a track below `parent`, after its existing tracks, and return its number.

        `counter` has the fields of Perfetto's `CounterDescriptor` for a track of a counter.
        """
        self.num_tracks += 1
        descriptor = {
            "uuid": self.num_tracks,
            "parent_uuid": parent,
            "name": name,
            "counter": counter,
            "sibling_order_rank": self.num_tracks,
            "child_ordering": "EXPLICIT",
        }
        self.trace.packet.add(trusted_packet_sequence_id=_SEQUENCE, track_descriptor=descriptor)
        return self.num_tracks

    def slices(
        self, slices: Iterable[tuple[int, Slice]], needs: Mapping[int, Iterable[int]]
    ) -> None:
        """Write slices with their tracks.

        Args:
            slices: (track, slice), in order of time within a track. If one slice ends and the
                next begins at the same time, Perfetto matches them by the order of packets.
            needs: for each task of the iteration, the transfers that it waits for. Arrows lead
                from these transfers to the task.
        """
        add = self.trace.packet.add
        for track, (thread, _, name, start_ns, end_ns, number, _) in slices:
            packet = add(trusted_packet_sequence_id=_SEQUENCE, timestamp=start_ns)
            event = packet.track_event
            event.type, event.track_uuid, event.name = self.begin, track, name
            if thread in SEND_THREADS:
                event.flow_ids.append(number + 1)  # 0 is no flow
            elif number in needs:
                event.terminating_flow_ids.extend(need + 1 for need in needs[number])
            packet = add(trusted_packet_sequence_id=_SEQUENCE, timestamp=end_ns)
            event = packet.track_event
            event.type, event.track_uuid = self.end, track

    def counter(self, track: int, counter: Counter) -> None:
        """Write the values of a counter."""
        for time_ns, value in zip(*counter, strict=True):
            packet = self.trace.packet.add(trusted_packet_sequence_id=_SEQUENCE, timestamp=time_ns)
            event = packet.track_event
            event.type, event.track_uuid = self.value, track
            if isinstance(value, int):
                event.counter_value = value
            else:
                event.double_counter_value = value
