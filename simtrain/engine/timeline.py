"""The result of a simulation: start and end of each task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from simtrain.engine.compiled import Floats
from simtrain.engine.program import Program


@dataclass(frozen=True, slots=True)
class Span:
    """A task with its start and end, in seconds from the start of the program."""

    name: str
    stream: str
    kind: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Time on the stream, including the slowdown by shared links."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of each task, in the order of the program's tasks.

    Arrays are [tasks], or [draws, tasks] if the program has several draws. Spans exist only for a
    single draw (`draw`).
    """

    program: Program
    start_s: Floats
    end_s: Floats

    def __repr__(self) -> str:
        if self.end_s.ndim > 1:
            return f"<Timeline: {self.program!r}, {len(self.end_s):,} draws>"
        return f"<Timeline: {self.program!r}, {self.makespan_s:.4g} s>"

    @property
    def makespans_s(self) -> Floats:
        """[draws], end of the last task; 0 for a program without tasks."""
        makespans: Floats = np.atleast_2d(self.end_s).max(axis=1, initial=0.0)
        return makespans

    @property
    def makespan_s(self) -> float:
        """End of the last task over all draws."""
        return float(self.makespans_s.max())

    def draw(self, number: int) -> Timeline:
        """The timeline of one draw."""
        program = replace(self.program, duration_s=self.program.draws_s[number])
        return Timeline(program, self.start_s[number], self.end_s[number])

    def span(self, index: int) -> Span:
        """Return the span of a task."""
        graph, ends = self.program.graph, (float(self.start_s[index]), float(self.end_s[index]))
        return Span(graph.name_of(index), graph.stream(index), graph.kind(index), *ends)

    def spans(self) -> Iterator[Span]:
        """Yield all spans by start, then by index."""
        return map(self.span, np.argsort(self.start_s, kind="stable").tolist())

    def critical_path(self) -> list[Span]:
        """Return the spans of `critical_tasks`."""
        return [*map(self.span, self.critical_tasks())]

    def critical_tasks(self) -> list[int]:
        """Return tasks from 0 to the end of the last task, each of which starts when the last ends.

        If a task waits for several tasks with the same end, the path takes the one before it on its
        stream, or else the first in its list.
        """
        graph, path = self.program.graph, list[int]()
        task = int(np.argmax(self.end_s)) if graph.num_tasks else -1
        while task >= 0:
            path.append(task)
            before = [
                other for other in (int(graph.previous[task]), *graph.waits(task)) if other >= 0
            ]
            task = max(before, key=self.end_s.__getitem__, default=-1)
        return path[::-1]

    def busy_s(self) -> dict[str, float]:
        """Return the busy time of each stream."""
        graph = self.program.graph
        seconds = np.bincount(graph.stream_of, self.end_s - self.start_s).tolist()
        return {graph.streams[number]: seconds[number] for number in graph.used_streams}
