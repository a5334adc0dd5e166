"""A stand-in of torch's CUDA interface: streams and events with made-up clocks, and its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_HZ = 2e9
"""Clock of `_sleep`, which calibrate takes GPUs to have."""


class StandInStream:
    """A stream that is busy until `busy_until_s`."""

    def __init__(self) -> None:
        self.busy_until_s = 0.0

    def wait_event(self, event: StandInEvent) -> None:
        """Wait for an event, on the device."""
        self.busy_until_s = max(self.busy_until_s, event.time_s)


class StandInEvent:
    """An event of the current stream, or of the one that it is recorded on."""

    cuda: CudaStandIn

    def __init__(self, *, enable_timing: bool = False) -> None:
        assert enable_timing, "without it, elapsed_time fails on a GPU"
        self.time_s = 0.0

    def record(self, stream: StandInStream | None = None) -> None:
        """Take the time at which the work of a stream so far ends."""
        self.time_s = (stream or self.cuda.current).busy_until_s

    def elapsed_time(self, end: StandInEvent) -> float:
        """Milliseconds to another event, after a synchronization alone."""
        assert self.cuda.calls[-1] == "synchronize"
        return 1e3 * (end.time_s - self.time_s)


class CudaStandIn:
    """Replaces functions of torch.cuda, and counts the seconds that kernels take."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.current = StandInStream()
        event = type("Event", (StandInEvent,), {"cuda": self})
        for name, value in {
            "Event": event,
            "Stream": StandInStream,
            "current_stream": lambda: self.current,
            "stream": self._on,
            "synchronize": lambda: self.calls.append("synchronize"),
            "_sleep": lambda cycles: self.launch(cycles / _HZ, "sleep"),
        }.items():
            patch.setattr(f"torch.cuda.{name}", value)

    def launch(self, seconds: float, name: str = "kernel") -> None:
        """Put a kernel on the current stream; the host goes on."""
        self.calls.append(name)
        self.current.busy_until_s += seconds

    @contextmanager
    def _on(self, stream: StandInStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before
