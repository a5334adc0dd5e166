"""What ZeRO stages 2 and 3 do within the passes of a chunk: parameters gathered, gradients reduced.

Sources: Rajbhandari et al., "ZeRO" (2020), Section 7; DeepSpeed's runtime/zero/stage_1_and_2.py and
stage3.py; PyTorch's FullyShardedDataParallel. A gradient of which a rank keeps its shard cannot be
added to whole, so each microbatch's is divided by the number of replicas, reduce-scattered unit by
unit in its backward pass, and added to the shard. In stage 3 each unit's parameters are gathered
before its forward pass, and again before its backward pass (or the recompute before it, so that one
gather serves both). Blocks that are no unit of their own (embedding, final norm, output layer) form
the root unit, as FSDP's: gathered first, there for the whole pass, reduced last.

States may be divided over a part of the replicas only (FSDP2's HSDP): a reduced shard is then
summed over the ranks that hold equal ones. Parameters may stay whole from a forward pass to its
backward pass, or be divided over fewer ranks there (`fully_shard`, `reshard_after_forward`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from simtrain.mesh import Group
from simtrain.workload.issue import Handle
from simtrain.workload.ops import Op, Phase, collective, elementwise
from simtrain.workload.tape import Microbatch
from simtrain.workload.work import Collective, CollectiveKind, KernelFamily

ROOT = -1
"""The unit of all blocks that are no unit of their own."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Gradients, and in stage 3 parameters, of which each rank of `data` holds a shard.

    Args:
        data: the ranks that divide them.
        shards_parameters: parameters too.
        joining: ranks that hold equal shards of different groups, and sum them; None if `data` has
            all replicas.
        prefetch: units whose parameters are gathered ahead of the one that is used.
        keeps_gathered: parameters stay whole from a forward pass to its backward pass.
        resharded: if given, the smaller group over which parameters are divided from a forward
            pass to its backward pass, which gathers them there.
        reduces: a backward pass reduces its gradients. Otherwise it adds them to whole ones.
        accumulates: reduced gradients are added to those of earlier microbatches.
    """

    data: Group
    shards_parameters: bool
    joining: Group | None = None
    prefetch: int = 1
    keeps_gathered: bool = False
    resharded: Group | None = None
    reduces: bool = True
    accumulates: bool = True


class Issues(Protocol):
    """What issues ops one by one."""

    def compute(self, op: Op) -> None:
        """Run a kernel."""

    def launch(self, op: Op, *, after: Handle | None = None) -> Handle | None:
        """Start a collective, after another one if given."""

    def wait(self, handle: Handle | None) -> None:
        """Let whatever is issued next wait for a collective."""


class ShardedPass:
    """What a pass exchanges with the other replicas.

    Each unit's parameters are gathered before it is used and, if that overlaps, those of the next
    units at the same time. Of reductions at most one is under way at a time. `gathered_bytes` and
    `bucket_bytes` are parameters and gradients that exist beside the rank's shards, at most at the
    same time.

    Args:
        order: issues the ops.
        sharding: what is sharded, and over which ranks.
        elements: parameters of each unit on this rank.
        batch: the types of parameters and gradients.
        used: units in the order in which the pass first needs their parameters.
        overlaps: gathers and reductions run beside compute.
        is_forward: a forward pass gathers in another phase than a backward pass.
    """

    def __init__(
        self,
        order: Issues,
        sharding: Sharding,
        elements: Mapping[int, int],
        batch: Microbatch,
        used: Iterable[int],
        *,
        overlaps: bool,
        is_forward: bool,
    ) -> None:
        self.order, self.elements, self.batch = order, elements, batch
        self.sharding, self.overlaps, self.is_forward = sharding, overlaps, is_forward
        self.upcoming: list[int] = []
        self.gathered: set[int] = set()
        self.resharded: set[int] = set()
        self.whole: set[int] = set()
        self.gathered_bytes = self.bucket_bytes = 0
        self._gathering: deque[Handle | None] = deque()
        self._reducing: tuple[int, Handle | None] | None = None
        if not sharding.shards_parameters:
            return
        units = [unit for unit in used if elements[unit]]
        if is_forward or not sharding.keeps_gathered:
            self.upcoming = units
        else:
            self.gathered.update(units)
        if sharding.resharded and not is_forward:
            self.resharded.update(units)
        self._count_gathered()

    def need(self, unit: int) -> None:
        """Let what is issued next wait for a unit's parameters, unless it has waited before."""
        if not self.upcoming or self.upcoming[0] != unit:
            return
        if not self._gathering:
            self._gather(unit)
        handle = self._gathering.popleft()
        self.upcoming.pop(0)
        if self.overlaps:
            for following in self.upcoming[len(self._gathering) : self.sharding.prefetch]:
                self._gather(following)
        self.order.wait(handle)
        self.resharded.discard(unit)

    def free(self, unit: int) -> None:
        """Free a unit's parameters, unless its backward pass is to find them."""
        if self.is_forward and self.sharding.keeps_gathered:
            return
        if self.is_forward and self.sharding.resharded and unit in self.gathered:
            self.resharded.add(unit)
        self.gathered.discard(unit)
        self._count_gathered()

    def begin(self, unit: int) -> None:
        """Hold a unit's gradients whole, from the first op that computes one of them."""
        if self.sharding.accumulates:
            self.whole.add(unit)
            held = self._sum(self.whole) * self.batch.gradient_bytes
            self.bucket_bytes = max(self.bucket_bytes, held)

    def reduce(self, unit: int) -> None:
        """Reduce the gradients of a unit, which are complete."""
        sharding = self.sharding
        if not sharding.reduces or not self.elements[unit]:
            return
        self.finish()
        num_bytes = self.elements[unit] * self.batch.gradient_bytes
        self.order.compute(_pass_over("gradient average", num_bytes, num_bytes))
        work = Collective(CollectiveKind.REDUCE_SCATTER, num_bytes, sharding.data)
        handle = self.order.launch(_exchange("gradient reduction", work, Phase.WEIGHT_GRADIENT))
        if sharding.joining:
            work = Collective(CollectiveKind.ALL_REDUCE, self._shard_bytes(unit), sharding.joining)
            op = _exchange("gradient shard all-reduce", work, Phase.WEIGHT_GRADIENT)
            handle = self.order.launch(op, after=handle)
        self._reducing = unit, handle
        if not self.overlaps:
            self.whole.discard(unit)

    def finish(self) -> None:
        """Add what the last reduction brought to the shard that the rank keeps."""
        if self._reducing is None:
            return
        unit, handle = self._reducing
        self.order.wait(handle)
        self.whole.discard(unit)
        if self.sharding.accumulates:
            shard_bytes = self._shard_bytes(unit)
            self.order.compute(_pass_over("gradient accumulate", 2 * shard_bytes, shard_bytes))
        self._reducing = None

    def _gather(self, unit: int) -> None:
        sharding = self.sharding
        self.gathered.add(unit)
        self._count_gathered()
        num_bytes = self.elements[unit] * self.batch.element_bytes
        group = sharding.data if self.is_forward else sharding.resharded or sharding.data
        work = Collective(CollectiveKind.ALL_GATHER, num_bytes, group)
        phase = Phase.FORWARD if self.is_forward else Phase.INPUT_GRADIENT
        self._gathering.append(self.order.launch(_exchange("parameter gather", work, phase)))

    def _count_gathered(self) -> None:
        held = self._sum(self.gathered)
        if self.sharding.resharded:
            ranks = self.sharding.resharded.num_ranks
            held += sum(-(-self.elements[unit] // ranks) for unit in self.resharded)
        self.gathered_bytes = max(self.gathered_bytes, held * self.batch.element_bytes)

    def _shard_bytes(self, unit: int) -> int:
        shard = -(-self.elements[unit] // self.sharding.data.num_ranks)
        return shard * self.batch.gradient_bytes

    def _sum(self, units: Iterable[int]) -> int:
        return sum(self.elements[unit] for unit in units)


def _exchange(name: str, work: Collective, phase: Phase) -> Op:
    return collective(name, work, phase, holds_activation=False)


def _pass_over(name: str, read_bytes: int, write_bytes: int) -> Op:
    """A kernel over gradients, which are no activations."""
    phase, stream = Phase.WEIGHT_GRADIENT, KernelFamily.STREAM
    return elementwise(name, read_bytes, write_bytes, phase, holds_bytes=0, family=stream)
