"""The result of a simulation: when each task started and ended."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.engine.program import Program

_HEADER = ("start_s", "end_s", "stream", "kind", "name")


@dataclass(frozen=True, slots=True)
class Span:
    """One task in time, in seconds from the start of the program."""

    name: str
    stream: str
    kind: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """How long the task held its stream, slowdown by other streams included."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end of each task, in the order of the program's tasks."""

    program: Program
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]

    def __repr__(self) -> str:
        return f"<Timeline: {self.program!r}, {self.makespan_s:.4g} s>"

    @property
    def makespan_s(self) -> float:
        """End of the last task; 0 for a program without tasks."""
        return max(self.end_s, default=0.0)

    def span(self, index: int) -> Span:
        """Return the span of the task with that index in the program."""
        task = self.program.tasks[index]
        return Span(task.name, task.stream, task.kind, self.start_s[index], self.end_s[index])

    def spans(self) -> Iterator[Span]:
        """All spans by start; of those that start together, the earlier task first."""
        order = sorted(range(len(self.start_s)), key=lambda index: (self.start_s[index], index))
        return map(self.span, order)

    def busy_s(self) -> dict[str, float]:
        """Seconds in which each stream runs a task."""
        return {
            stream: math.fsum(self.end_s[index] - self.start_s[index] for index in queue)
            for stream, queue in self.program.queues().items()
        }

    def to_tsv(self) -> str:
        """A header and one line a span (start_s, end_s, stream, kind, name), tab-separated.

        Seconds are written in full precision.
        """
        rows = [_HEADER]
        for span in self.spans():
            rows.append((repr(span.start_s), repr(span.end_s), span.stream, span.kind, span.name))
        return "".join("\t".join(row) + "\n" for row in rows)
