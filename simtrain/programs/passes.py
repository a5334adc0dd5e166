"""The passes of a scenario's chunks: what each does and how long it takes, each looked at once.

Passes that differ in sizes only have the same tasks; for the compiled executor these are laid out
once and remembered for other scenarios.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cachetools import LRUCache, cached

from simtrain.costs.price import Pricer
from simtrain.engine import Engine
from simtrain.programs.chunk import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    LAUNCH,
    ActionTime,
    OpSlot,
    PassPattern,
    op_slots,
    pass_pattern,
    simulate_chunk,
)
from simtrain.scenario import RecomputePolicy
from simtrain.schedules import Kind
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, total_flops, total_model_flops
from simtrain.workload.recompute import repeated_units
from simtrain.workload.shape import LayerShape
from simtrain.workload.zero import DividedStates

_REMEMBERED = 2_000_000
"""Tasks that are remembered for further scenarios."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward or backward pass of a chunk under a policy of recompute."""

    chunk: Chunk
    kind: Kind
    recompute: RecomputePolicy


@dataclass
class Passes:
    """All passes of one layer shape on one machine.

    `hide` and `divided` are as in `Chunk.forward`. With the engine `auto` they are left to SimPy:
    one pass is too short to be worth compiling.
    """

    shape: LayerShape
    hide: bool
    divided: DividedStates | None
    pricer: Pricer
    engine: Engine = "auto"
    _times: dict[Pass, ActionTime] = field(default_factory=dict)
    _orders: dict[Pass, IssueOrder] = field(default_factory=dict)
    _flops: dict[Pass, tuple[int, int]] = field(default_factory=dict)

    def order(self, one: Pass) -> IssueOrder:
        """The ops of a pass."""
        if one not in self._orders:
            self._orders[one] = issue(one, self.shape, self.hide, self.divided)
        return self._orders[one]

    def time(self, one: Pass) -> ActionTime:
        """Where its seconds go."""
        if one not in self._times:
            self._times[one] = self._simulate(one)
        return self._times[one]

    def flops(self, one: Pass, *, recompute: bool) -> int:
        """FLOPs of its matrix products: all that run, or the paper's count of the model's."""
        if one not in self._flops:
            self._flops[one] = self._count(one)
        of_model, of_all = self._flops[one]
        return of_all if recompute else of_model

    def _simulate(self, one: Pass) -> ActionTime:
        if self.engine != "compiled":
            return simulate_chunk(self.order(one), self.pricer)
        tasks = self._tasks(one)
        seconds: dict[OpSlot | str, float] = {LAUNCH: self.pricer.profile.host.issue.value}
        seconds |= {
            slot: self.pricer.cost(op).duration_s for slot, op in self._different_ops(one).items()
        }
        return tasks.time([seconds[slot] for slot in tasks.slots])

    def _count(self, one: Pass) -> tuple[int, int]:
        """FLOPs of the model, and of all that runs."""
        numbers = tuple(self._numbers(one))
        return (
            sum(number * total_model_flops((op,)) for op, number in numbers),
            sum(number * total_flops((op,)) for op, number in numbers),
        )

    def _numbers(self, one: Pass) -> Iterable[tuple[Op, int]]:
        """Ops of a pass and how often each is there."""
        if self.engine != "compiled":
            return ((op, 1) for op in self.order(one).ops())
        ops = self._different_ops(one)
        return ((ops[slot], number) for slot, number in self._tasks(one).numbers)

    def _different_ops(self, one: Pass) -> dict[OpSlot, Op]:
        """An op of each slot; units that do what their neighbours do have none of their own."""
        few, _, _ = _without_repeated(one, self.divided)
        return _ops_by_slot(few, self.shape, self.hide, self.divided)

    def _tasks(self, one: Pass) -> PassTasks:
        variant = self.shape.variant, self.divided and self.divided.variant
        slowdown = self.pricer.profile.overlap.slowdown.value
        return _lay_out(_Key(one, self.hide, slowdown, variant, self.shape, self.divided))


def issue(one: Pass, shape: LayerShape, hide: bool, divided: DividedStates | None) -> IssueOrder:
    """The ops of a pass, in the order in which they are issued."""
    one_way = one.chunk.forward if one.kind == "F" else one.chunk.backward
    return one_way(shape, one.recompute, hide=hide, divided=divided)


@functools.lru_cache(maxsize=2048)
def _ops_by_slot(
    one: Pass, shape: LayerShape, hide: bool, divided: DividedStates | None
) -> dict[OpSlot, Op]:
    order = issue(one, shape, hide, divided)
    return dict(zip(op_slots(order), order.ops(), strict=True))


@dataclass(frozen=True, slots=True)
class _Key:
    """What decides the tasks of a pass; `shape` and `divided` are an example of the variant."""

    one: Pass
    hide: bool
    slowdown: float
    variant: Any
    shape: LayerShape = field(compare=False)
    divided: DividedStates | None = field(compare=False)


@cached(LRUCache(_REMEMBERED, lambda tasks: len(tasks.slot_of)))
def _lay_out(key: _Key) -> PassTasks:
    """Tasks of a pass: units that do what their neighbours do are laid out once and repeated."""
    few, unit, times = _without_repeated(key.one, key.divided)
    order = issue(few, key.shape, key.hide, key.divided)
    laid_out = pass_pattern(order, key.slowdown)
    if times:
        # The backward pass begins with the last unit, which may be a shorter one.
        first = _ends(key.divided) * unit
        first += key.one.chunk.num_layers % unit if key.one.kind == "B" else 0
        laid_out = laid_out.repeated(first, first + unit, times)
    return PassTasks.of(laid_out)


def _without_repeated(one: Pass, divided: DividedStates | None) -> tuple[Pass, int, int]:
    """The pass with fewer units, the layers of a unit, and how many units were left out."""
    chunk = one.chunk
    unit, times = repeated_units(one.recompute, chunk.num_layers, _ends(divided))
    few = replace(chunk, num_layers=chunk.num_layers - times * unit)
    return replace(one, chunk=few), unit, times


def _ends(divided: DividedStates | None) -> int:
    """Units at either end that are not like those between: what is gathered is the next one's."""
    return 2 if divided else 1


@dataclass(frozen=True, slots=True, eq=False)
class PassTasks:
    """The tasks of a pass for the compiled executor, without their names.

    `numbers` says how many ops each slot has. `tasks` are those of all ops in issue order,
    `compute` the kernels among them, of which `again` says which are run again.
    """

    wiring: Any
    slot_of: Any
    slots: tuple[OpSlot | str, ...]
    numbers: tuple[tuple[OpSlot, int], ...]
    tasks: Any
    compute: Any
    again: Any
    exchanges: Any
    divisions: Any
    layer_ends: Any

    @classmethod
    def of(cls, laid_out: PassPattern) -> PassTasks:
        """Those of a pass that was laid out."""
        import numpy as np

        pattern = laid_out.pattern
        slots: Any = pattern.slots
        numbers = Counter(slots[pattern.slot_of[task]] for task in laid_out.tasks)

        def on(stream: str) -> Any:
            found = [task for task in laid_out.tasks if pattern.streams[task] == stream]
            return np.array(found, np.int32)

        return cls(
            pattern.wiring,
            np.array(pattern.slot_of, np.int32),
            slots,
            tuple(numbers.items()),
            np.array(laid_out.tasks, np.int32),
            compute := on(COMPUTE),
            np.array([pattern.kinds[task] == Phase.RECOMPUTE for task in compute], np.bool_),
            on(COMMUNICATION),
            on(DATA),
            np.array(laid_out.layer_ends, np.int32),
        )

    def time(self, seconds: list[float]) -> ActionTime:
        """Run the pass with so many seconds for each slot."""
        import numpy as np

        from simtrain.programs.pass_kernel import layer_ends, parts_of

        times_s = self.wiring.run(np.array(seconds)[self.slot_of])
        kernels = self.compute, self.again, self.exchanges, self.divisions
        compute_s, recompute_s, exposed_s, data_s = parts_of(*kernels, *times_s)
        makespan_s = float(times_s[1].max())
        return ActionTime(
            compute_s,
            recompute_s,
            exposed_s,
            data_s,
            max(0.0, makespan_s - compute_s - recompute_s - exposed_s - data_s),
            tuple(layer_ends(self.tasks, self.layer_ends, times_s[1]).tolist()),
        )
