"""Builds programs task by task. Durations may be slots that are filled in later."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from simtrain.engine.program import Program, Task

if TYPE_CHECKING:
    from simtrain.engine.wiring import Wiring

Duration = Hashable
"""Seconds (a float), or a slot: whatever names a duration that is given later."""


@dataclass
class ProgramBuilder:
    """Collects tasks as columns, and lets one wait for a task that is added after it.

    Task i has `names[i]` (anything with a text), waits for the tasks `after[i]`, and has the
    stream, kind and slot with the numbers `stream_of[i]`, `kind_of[i]` and `slot_of[i]`. Programs
    of one shape that differ only in seconds are built once.
    """

    names: list[object] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    stream_of: list[int] = field(default_factory=list)
    kind_of: list[int] = field(default_factory=list)
    slot_of: list[int] = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    slots: dict[Duration, int] = field(default_factory=dict)

    def add(
        self,
        name: object,
        stream: str,
        duration: Duration,
        after: tuple[int, ...] = (),
        kind: str = "",
    ) -> int:
        """Queue a task on its stream (the fields of `Task`) and return its index."""
        self.names.append(name)
        self.after.append(after)
        self.stream_of.append(self.streams.setdefault(stream, len(self.streams)))
        self.kind_of.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.slot_of.append(self.slots.setdefault(duration, len(self.slots)))
        return len(self.names) - 1

    def wait(self, task: int, after: tuple[int, ...]) -> None:
        """Let `task` start only when the tasks `after` have ended as well."""
        self.after[task] += after

    def program(self, seconds: Callable[[Any], float]) -> Program:
        """The program of all tasks so far, in which each slot lasts `seconds(slot)`.

        Raises InputError (E501, E502) as `Program` does.
        """
        streams, kinds = list(self.streams), list(self.kinds)
        lasting_s = [seconds(slot) for slot in self.slots]
        columns = zip(
            self.names, self.stream_of, self.slot_of, self.after, self.kind_of, strict=True
        )
        return Program(
            tuple(
                Task(str(name), streams[stream], lasting_s[slot], after, kinds[kind])
                for name, stream, slot, after, kind in columns
            )
        )

    def build(self) -> Program:
        """The program of all tasks so far, whose durations were given in seconds.

        Raises InputError (E501, E502) as `Program` does.
        """
        return self.program(lambda seconds: cast(float, seconds))

    @cached_property
    def wiring(self) -> Wiring:
        """The tasks for the compiled executor; read when the last one has been added."""
        from simtrain.engine.wiring import Wiring, concatenated

        return Wiring.of(len(self.streams), self.stream_of, *concatenated(self.after))
