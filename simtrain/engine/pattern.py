"""Programs of one shape that differ only in seconds: their tasks, with names for the durations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from simtrain.engine.program import Interference, Program, Task

if TYPE_CHECKING:
    from simtrain.engine.wiring import Wiring

Duration = Hashable
"""Seconds (a float), or the slot of a pattern: whatever names a duration that is given later."""


@dataclass(frozen=True)
class Pattern:
    """Tasks in their order, as columns; `slots[slot_of[i]]` names the duration of task i.

    Names are whatever has a text: it is asked for when there is a program to read.
    """

    names: tuple[object, ...]
    streams: tuple[str, ...]
    kinds: tuple[str, ...]
    contends: tuple[bool, ...]
    after: tuple[tuple[int, ...], ...]
    slot_of: tuple[int, ...]
    slots: tuple[Duration, ...]
    interference: Mapping[str, Interference]

    def program(self, seconds: Callable[[Any], float]) -> Program:
        """The program in which each slot lasts so many seconds.

        Raises InputError (E501 to E503) as `Program` does.
        """
        lasting_s = [seconds(slot) for slot in self.slots]
        tasks = tuple(
            Task(str(name), stream, lasting_s[slot], after, kind, contends)
            for name, stream, slot, after, kind, contends in zip(
                self.names,
                self.streams,
                self.slot_of,
                self.after,
                self.kinds,
                self.contends,
                strict=True,
            )
        )
        return Program(tasks, self.interference)

    def repeated(self, first: int, last: int, times: int) -> Pattern:
        """The same with the tasks from `first` up to `last` there so many times more.

        Each repetition, and what comes after it, waits for others as far away as before.
        """
        length = last - first

        def again(column: tuple[Any, ...]) -> tuple[Any, ...]:
            return column[:last] + column[first:last] * times + column[last:]

        shifts = [0] * last
        for number in range(1, times + 1):
            shifts += [number * length] * length
        shifts += [times * length] * (len(self.names) - last)
        return Pattern(
            again(self.names),
            again(self.streams),
            again(self.kinds),
            again(self.contends),
            tuple(
                tuple([other + shift for other in after]) if shift else after
                for after, shift in zip(again(self.after), shifts, strict=True)
            ),
            again(self.slot_of),
            self.slots,
            self.interference,
        )

    @cached_property
    def wiring(self) -> Wiring:
        """The same tasks for the compiled executor."""
        from simtrain.engine.wiring import Wiring

        return Wiring.of(self.streams, self.after, self.contends, self.interference)


@dataclass
class ProgramBuilder:
    """Collects tasks, and lets one wait for a task that is added after it."""

    _names: list[object] = field(default_factory=list)
    _streams: list[str] = field(default_factory=list)
    _kinds: list[str] = field(default_factory=list)
    _contends: list[bool] = field(default_factory=list)
    _after: list[tuple[int, ...]] = field(default_factory=list)
    _slot_of: list[int] = field(default_factory=list)
    _slots: dict[Duration, int] = field(default_factory=dict)

    def add(
        self,
        name: object,
        stream: str,
        duration: Duration,
        after: tuple[int, ...] = (),
        kind: str = "",
        contends: bool = False,
    ) -> int:
        """Queue a task on its stream (the fields of `Task`) and return its index."""
        self._names.append(name)
        self._streams.append(stream)
        self._slot_of.append(self._slots.setdefault(duration, len(self._slots)))
        self._kinds.append(kind)
        self._contends.append(contends)
        self._after.append(after)
        return len(self._names) - 1

    def wait(self, task: int, after: tuple[int, ...]) -> None:
        """Let `task` start only when the tasks `after` have ended as well."""
        self._after[task] += after

    def pattern(self, interference: Mapping[str, Interference] | None = None) -> Pattern:
        """All tasks so far."""
        return Pattern(
            tuple(self._names),
            tuple(self._streams),
            tuple(self._kinds),
            tuple(self._contends),
            tuple(self._after),
            tuple(self._slot_of),
            tuple(self._slots),
            interference or {},
        )

    def build(self, interference: Mapping[str, Interference] | None = None) -> Program:
        """The program of all tasks so far, whose durations were given in seconds.

        Raises InputError (E501 to E503) as `Program` does.
        """
        return self.pattern(interference).program(lambda seconds: cast(float, seconds))
