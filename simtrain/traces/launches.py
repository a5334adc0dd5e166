"""The op of PyTorch that launched a kernel."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence

from simtrain.traces.events import Event, begin_us, duration_s, whole_number

LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")
_MOST_NESTED = 64
"""Ops before a launch among which the one that encloses it is sought."""


class Enclosing:
    """Finds the innermost event that encloses a moment on a thread."""

    def __init__(self, events: Sequence[Event]) -> None:
        by_thread: dict[str, list[tuple[float, float, Event]]] = defaultdict(list)
        for event in events:
            begin = begin_us(event)
            if begin is not None and (seconds := duration_s(event)):
                by_thread[_thread(event)].append((begin, begin + seconds * 1e6, event))
        self._spans = by_thread
        self._begins: dict[str, list[float]] = {}
        for thread, spans in by_thread.items():
            spans.sort(key=lambda span: (span[0], -span[1]))
            self._begins[thread] = [begin for begin, _, _ in spans]

    def of(self, event: Event) -> Event | None:
        """Return the innermost event around the begin of another on its thread."""
        thread, time = _thread(event), begin_us(event)
        if thread not in self._spans or time is None:
            return None
        # Of nested ops the last to begin is the innermost; few siblings end in between.
        last = bisect.bisect_right(self._begins[thread], time)
        before = reversed(self._spans[thread][max(0, last - _MOST_NESTED) : last])
        return next((enclosing for _, end, enclosing in before if end >= time), None)


def launches_by_correlation(events: Sequence[Event]) -> dict[int | None, Event]:
    """Return the launches, which have the `correlation` of their kernels."""
    return {
        whole_number(event, "correlation"): event
        for event in events
        if event.get("cat") in LAUNCH_CATEGORIES
    }


def launching_ops(events: Sequence[Event]) -> Callable[[Event], Event | None]:
    """Return a function from a kernel to the innermost op that launched it.

    Newer traces number both alike (`External id`). In older ones the op encloses the launch, which
    has the kernel's `correlation`, on its thread.
    """
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    by_number = {whole_number(op, "External id"): op for op in ops}
    launches, enclosing = launches_by_correlation(events), Enclosing(ops)

    def op_of(kernel: Event) -> Event | None:
        """Return the op of a kernel; None if the trace does not have it."""
        number = whole_number(kernel, "External id")
        correlation = whole_number(kernel, "correlation")
        if number is not None and number != correlation and number in by_number:
            return by_number[number]
        launch = launches.get(correlation) if correlation is not None else None
        op = enclosing.of(launch) if launch else None
        return op or (by_number.get(number) if number is not None else None)

    return op_of


def _thread(event: Event) -> str:
    return repr(event.get("tid"))
