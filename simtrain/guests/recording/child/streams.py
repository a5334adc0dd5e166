"""Streams and events of a pretend device, which say what waits for what.

Programs that take streams from the module of their device, such as PyTorch's fully_shard, find
streams in `torch.cpu` that do nothing. Others take their place and keep track.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COMPUTE = 0
"""The number of the stream on which programs compute by default."""


class Streams:
    """All streams: the last op of each, and the ops that the next op of each waits for."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self._pending: dict[int, set[int]] = {}
        self._waited: dict[tuple[int, int], int] = {}
        self._stream_of: dict[int, int] = {}
        self._numbers = 0
        self.current = COMPUTE

    def new(self) -> int:
        self._numbers += 1
        return self._numbers

    def wait(self, stream: int, op: int | None) -> None:
        """Let the next op of a stream wait for an op, by its number."""
        if op is not None and self._stream_of.get(op, stream) != stream:
            self._pending.setdefault(stream, set()).add(op)

    def issue(self, stream: int, op: int) -> list[int]:
        """Issue an op on a stream; return the ops of other streams that it is first to wait for."""
        waits = []
        for other in sorted(self._pending.pop(stream, ()), reverse=True):
            key = stream, self._stream_of[other]
            # A stream is a queue: to wait for an op is to wait for all ops before it.
            if self._waited.get(key, -1) < other:
                self._waited[key] = other
                waits.append(other)
        self.last[stream] = op
        self._stream_of[op] = stream
        return waits

    def forget(self) -> None:
        """Forget ops: those of a pass do not wait for those of the pass before."""
        self.last.clear()
        self._pending.clear()
        self._waited.clear()
        self._stream_of.clear()


def stand_ins(streams: Streams) -> dict[str, Any]:
    """Return what stands for the streams and events of a device, by name."""

    class Event:
        """An event: the last op of a stream at some moment."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self.op: int | None = None

        def record(self, stream: Any = None) -> None:
            number = streams.current if stream is None else stream.number
            self.op = streams.last.get(number)

        def wait(self, stream: Any = None) -> None:
            streams.wait(streams.current if stream is None else stream.number, self.op)

        def query(self) -> bool:
            return True

        synchronize = wait

    class Stream:
        """A stream."""

        def __init__(self, *args: Any, number: int | None = None, **options: Any) -> None:
            self.number = streams.new() if number is None else number

        def wait_stream(self, other: Any) -> None:
            streams.wait(self.number, streams.last.get(other.number))

        def wait_event(self, event: Any) -> None:
            streams.wait(self.number, event.op)

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def synchronize(self) -> None:
            streams.wait(streams.current, streams.last.get(self.number))

    @contextmanager
    def on(stream: Any) -> Iterator[None]:
        """Make a stream the current one."""
        before = streams.current
        streams.current = before if stream is None else stream.number
        try:
            yield
        finally:
            streams.current = before

    def current_stream(device: Any = None) -> Stream:
        return Stream(number=streams.current)

    return {
        "Event": Event,
        "Stream": Stream,
        "stream": on,
        "StreamContext": on,
        "current_stream": current_stream,
    }
