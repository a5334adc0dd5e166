"""What ZeRO stages 2 and 3 do within the passes of a chunk: parameters gathered, gradients reduced.

Sources: Rajbhandari et al., "ZeRO" (2020), Section 7; DeepSpeed's runtime/zero/stage_1_and_2.py and
stage3.py; PyTorch's FullyShardedDataParallel. A gradient of which a rank keeps its shard cannot be
added to whole, so each microbatch's is divided by the number of replicas, reduce-scattered unit by
unit in its backward pass, and added to the shard. In stage 3 each unit's parameters are gathered
before its forward pass, and again before its backward pass (or the recompute before it, so that one
gather serves both). Blocks that are no unit of their own (embedding, final norm, output layer) form
the root unit, as FSDP's: gathered first, there for the whole pass, reduced last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from simtrain.mesh import Group
from simtrain.workload.issue import Handle
from simtrain.workload.ops import Op, Phase, collective, elementwise
from simtrain.workload.work import Collective, CollectiveKind, KernelFamily

ROOT = -1
"""The unit of all blocks that are no unit of their own."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Gradients, and in stage 3 parameters, of which each rank of `data` holds a shard."""

    data: Group
    shards_parameters: bool


class Issues(Protocol):
    """What issues ops one by one."""

    def compute(self, op: Op) -> None:
        """Run a kernel."""

    def launch(self, op: Op) -> Handle | None:
        """Start a collective."""

    def wait(self, handle: Handle | None) -> None:
        """Let whatever is issued next wait for a collective."""


@dataclass
class ParameterGathers:
    """The gathers of a pass: each unit's before it is used, and the next one's if they hide.

    `elements` are each unit's parameters on this rank, `upcoming` the units in the order in which
    they are needed. `most_elements` are gathered at the same time.
    """

    order: Issues
    data: Group
    element_bytes: int
    elements: Mapping[int, int]
    phase: Phase
    upcoming: deque[int]
    prefetches: bool
    most_elements: int = 0
    _in_flight: Handle | None = None
    _gathered: set[int] = field(default_factory=set)

    def need(self, unit: int) -> None:
        """Let what is issued next wait for a unit's parameters, unless it has waited before."""
        if not self.upcoming or self.upcoming[0] != unit:
            return
        handle = self._in_flight or self._launch()
        self._in_flight = None
        self.upcoming.popleft()
        if self.upcoming and self.prefetches:
            self._in_flight = self._launch()
        self.order.wait(handle)

    def free(self, unit: int) -> None:
        """Free a unit's parameters, which nothing in the pass needs any more."""
        self._gathered.discard(unit)

    def _launch(self) -> Handle | None:
        self._gathered.add(self.upcoming[0])
        gathered = sum(self.elements[unit] for unit in self._gathered)
        self.most_elements = max(self.most_elements, gathered)
        num_bytes = self.elements[self.upcoming[0]] * self.element_bytes
        work = Collective(CollectiveKind.ALL_GATHER, num_bytes, self.data)
        op = collective("parameter gather", work, self.phase, holds_activation=False)
        return self.order.launch(op)


@dataclass
class GradientReductions:
    """The reductions of a backward pass, at most one of them under way at a time.

    `most_elements` are gradients that exist whole at the same time. With `overlaps` those of a unit
    do until its reduction, which runs beside the next unit's backward pass, has ended.
    """

    order: Issues
    data: Group
    gradient_bytes: int
    elements: Mapping[int, int]
    overlaps: bool
    most_elements: int = 0
    _in_flight: tuple[int, Handle | None] | None = None
    _whole: set[int] = field(default_factory=set)

    def begin(self, unit: int) -> None:
        """Hold a unit's gradients whole, from the first op that computes one of them."""
        self._whole.add(unit)
        whole = sum(self.elements[one] for one in self._whole)
        self.most_elements = max(self.most_elements, whole)

    def reduce(self, unit: int) -> None:
        """Reduce the gradients of a unit, which are complete."""
        if not self.elements[unit]:
            return
        self.finish()
        num_bytes = self.elements[unit] * self.gradient_bytes
        self.order.compute(_pass_over("gradient average", num_bytes, num_bytes))
        work = Collective(CollectiveKind.REDUCE_SCATTER, num_bytes, self.data)
        phase = Phase.WEIGHT_GRADIENT
        op = collective("gradient reduction", work, phase, holds_activation=False)
        self._in_flight = unit, self.order.launch(op)
        if not self.overlaps:
            self._whole.discard(unit)

    def finish(self) -> None:
        """Add what the last reduction brought to the shard that the rank keeps."""
        if self._in_flight is not None:
            unit, handle = self._in_flight
            self.order.wait(handle)
            self._whole.discard(unit)
            shard_bytes = -(-self.elements[unit] // self.data.num_ranks) * self.gradient_bytes
            self.order.compute(_pass_over("gradient accumulate", 2 * shard_bytes, shard_bytes))
            self._in_flight = None


def _pass_over(name: str, read_bytes: int, write_bytes: int) -> Op:
    """A kernel over gradients, which are no activations."""
    return elementwise(
        name,
        read_bytes,
        write_bytes,
        Phase.WEIGHT_GRADIENT,
        holds_bytes=0,
        family=KernelFamily.STREAM,
    )
