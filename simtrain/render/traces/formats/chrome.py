"""Chrome's format, which Perfetto opens too."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from simtrain.render.traces.formats.trace_format import TraceFormat

if TYPE_CHECKING:
    from simtrain.render.traces.events import TraceEvents


class Chrome(TraceFormat):
    """JSON, like Kineto's."""

    suffixes = (".json.gz", ".json")
    text = "a Chrome trace, as PyTorch's profiler writes it"

    def write(self, events: TraceEvents, target: IO[bytes]) -> None:
        """Write all ranks, and the critical path."""
        from simtrain.render.traces.chrome import write_chrome

        write_chrome(events, range(events.result.num_stages), target, critical_path=True)
