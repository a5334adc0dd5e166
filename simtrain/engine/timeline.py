"""The result of a simulation: when each task started and ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from simtrain.engine.compiled import Floats
from simtrain.engine.program import Program


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
        """How long the task held its stream, the time lost to what shares its links included."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of each task, in the order of the program's tasks.

    Arrays are [tasks], or [draws, tasks] where the program's durations are draws; `draw` gives the
    timeline of one of these, as which alone it can be read span by span.
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
        """End of the last task of each draw; 0 for a program without tasks."""
        makespans: Floats = np.atleast_2d(self.end_s).max(axis=1, initial=0.0)
        return makespans

    @property
    def makespan_s(self) -> float:
        """End of the last task, of all draws."""
        return float(self.makespans_s.max())

    def draw(self, number: int) -> Timeline:
        """The timeline of one draw."""
        program = replace(self.program, duration_s=self.program.draws_s[number])
        return Timeline(program, self.start_s[number], self.end_s[number])

    def span(self, index: int) -> Span:
        """Return the span of the task with that index in the program."""
        graph, ends = self.program.graph, (float(self.start_s[index]), float(self.end_s[index]))
        return Span(graph.name_of(index), graph.stream(index), graph.kind(index), *ends)

    def spans(self) -> Iterator[Span]:
        """All spans by start; of those that start together, the earlier task first."""
        return map(self.span, np.argsort(self.start_s, kind="stable").tolist())

    def critical_path(self) -> list[Span]:
        """Spans from 0 to the end of the last task, each of which starts as the one before ends.

        Of several tasks that a span waits for to the last, it is the one before it on its stream,
        or else the first in its list.
        """
        graph, path = self.program.graph, list[int]()
        task = int(np.argmax(self.end_s)) if graph.num_tasks else -1
        while task >= 0:
            path.append(task)
            before = [
                other for other in (int(graph.previous[task]), *graph.waits(task)) if other >= 0
            ]
            task = max(before, key=self.end_s.__getitem__, default=-1)
        return [self.span(task) for task in reversed(path)]

    def busy_s(self) -> dict[str, float]:
        """Seconds in which each stream runs a task."""
        graph = self.program.graph
        seconds = np.bincount(graph.stream_of, self.end_s - self.start_s).tolist()
        return {graph.streams[number]: seconds[number] for number in graph.used_streams}

    def to_tsv(self) -> str:
        """A header and one line a span (start_s, end_s, stream, kind, name), tab-separated.

        Seconds are written in full precision.
        """
        rows = (
            f"{span.start_s!r}\t{span.end_s!r}\t{span.stream}\t{span.kind}\t{span.name}\n"
            for span in self.spans()
        )
        return "start_s\tend_s\tstream\tkind\tname\n" + "".join(rows)
