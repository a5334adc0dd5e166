"""Deadlocks: which streams wait for which, when no task can start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simtrain.engine.compiled import Flags
from simtrain.engine.program import TaskGraph
from simtrain.errors import SimtrainError

_MAX_STREAMS_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Wait:
    """A stuck stream, its next task, and the streams that block it, each with a description."""

    stream: str
    head: str
    blockers: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        words = " and ".join(words for _, words in self.blockers)
        return f"{self.head!r} on {self.stream} waits for {words}"


class DeadlockError(SimtrainError):
    """Some tasks can never start.

    `waits` contains all stuck streams in the order of the program. `cycle` contains streams of
    which each waits for the next, and the last for the first.
    """

    def __init__(self, waits: Sequence[Wait]) -> None:
        self.waits = tuple(waits)
        self.cycle = _cycle(self.waits)
        super().__init__(self.waits)

    def __str__(self) -> str:
        circle = (f"{wait.head!r} on {wait.stream}" for wait in (*self.cycle, self.cycle[0]))
        lines = [
            f"deadlock: {len(self.waits)} streams can never continue",
            f"  each waits for the next: {' -> '.join(circle)}",
            *(f"  {wait}" for wait in self.waits[:_MAX_STREAMS_SHOWN]),
        ]
        if len(self.waits) > _MAX_STREAMS_SHOWN:
            lines.append(f"  and {len(self.waits) - _MAX_STREAMS_SHOWN} more streams")
        return "\n".join(lines)


def find_waits(graph: TaskGraph, is_unfinished: Flags) -> Iterator[Wait]:
    """List the stuck streams with the tasks that they wait for."""
    left = {
        stream: [index for index in queue if is_unfinished[index]]
        for stream, queue in graph.queues().items()
    }

    def blocker(index: int) -> tuple[str, str]:
        """Return the stream of a task, and the task in words with those before it in its queue."""
        stream = graph.stream(index)
        words, place = f"{graph.name_of(index)!r} on {stream}", left[stream].index(index)
        if place > 0:
            more = f" and {place - 1} more" if place > 1 else ""
            words += f", queued behind {graph.name_of(left[stream][0])!r}{more}"
        return stream, words

    for stream, queue in left.items():
        if queue:
            unfinished = [index for index in graph.waits(queue[0]) if is_unfinished[index]]
            yield Wait(stream, graph.name_of(queue[0]), tuple(map(blocker, unfinished)))


def _cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Follow the waits until a stream repeats.

    A stuck stream waits for an unfinished task, on a stream that is stuck too. So the walk does not
    end before it repeats.
    """
    by_stream = {wait.stream: wait for wait in waits}
    path = [waits[0]]
    while (following := by_stream[path[-1].blockers[0][0]]) not in path:
        path.append(following)
    return tuple(path[path.index(following) :])
