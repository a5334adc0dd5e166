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


class ShardedPass:
    """What a pass exchanges with the other replicas; nothing at all without sharding.

    Each unit's parameters are gathered before it is used and, if that overlaps, the next unit's at
    the same time. Of reductions at most one is under way at a time. `gathered_bytes` and
    `bucket_bytes` are parameters and gradients that exist whole, at most at the same time.

    Args:
        order: issues the ops.
        sharding: what is sharded, if anything.
        elements: parameters of each unit on this rank.
        batch: the types of parameters and gradients.
        used: units in the order in which the pass first needs their parameters.
        overlaps: gathers and reductions run beside compute.
        is_forward: a forward pass gathers in another phase than a backward pass.
    """

    def __init__(
        self,
        order: Issues,
        sharding: Sharding | None,
        elements: Mapping[int, int],
        batch: Microbatch,
        used: Iterable[int],
        *,
        overlaps: bool,
        is_forward: bool,
    ) -> None:
        self.order, self.elements, self.batch, self.overlaps = order, elements, batch, overlaps
        self.data = sharding.data if sharding else None
        gathers = sharding is not None and sharding.shards_parameters
        self.upcoming = [unit for unit in used if elements[unit]] if gathers else []
        self.phase = Phase.FORWARD if is_forward else Phase.INPUT_GRADIENT
        self.gathered: set[int] = set()
        self.whole: set[int] = set()
        self.gathered_bytes = self.bucket_bytes = 0
        self._gathering: Handle | None = None
        self._reducing: tuple[int, Handle | None] | None = None

    def need(self, unit: int) -> None:
        """Let what is issued next wait for a unit's parameters, unless it has waited before."""
        if not self.upcoming or self.upcoming[0] != unit:
            return
        handle = self._gathering or self._gather()
        self._gathering = None
        self.upcoming.pop(0)
        if self.upcoming and self.overlaps:
            self._gathering = self._gather()
        self.order.wait(handle)

    def free(self, unit: int) -> None:
        """Free a unit's parameters, which nothing in the pass needs any more."""
        self.gathered.discard(unit)

    def begin(self, unit: int) -> None:
        """Hold a unit's gradients whole, from the first op that computes one of them."""
        if self.data:
            self.whole.add(unit)
            held = self._sum(self.whole) * self.batch.gradient_bytes
            self.bucket_bytes = max(self.bucket_bytes, held)

    def reduce(self, unit: int) -> None:
        """Reduce the gradients of a unit, which are complete."""
        if self.data is None or not self.elements[unit]:
            return
        self.finish()
        num_bytes = self.elements[unit] * self.batch.gradient_bytes
        self.order.compute(_pass_over("gradient average", num_bytes, num_bytes))
        work = Collective(CollectiveKind.REDUCE_SCATTER, num_bytes, self.data)
        phase = Phase.WEIGHT_GRADIENT
        op = collective("gradient reduction", work, phase, holds_activation=False)
        self._reducing = unit, self.order.launch(op)
        if not self.overlaps:
            self.whole.discard(unit)

    def finish(self) -> None:
        """Add what the last reduction brought to the shard that the rank keeps."""
        if self._reducing is not None and self.data is not None:
            unit, handle = self._reducing
            self.order.wait(handle)
            self.whole.discard(unit)
            shard = -(-self.elements[unit] // self.data.num_ranks)
            shard_bytes = shard * self.batch.gradient_bytes
            self.order.compute(_pass_over("gradient accumulate", 2 * shard_bytes, shard_bytes))
            self._reducing = None

    def _gather(self) -> Handle | None:
        assert self.data is not None, "only what is sharded is gathered"
        unit = self.upcoming[0]
        self.gathered.add(unit)
        held = self._sum(self.gathered) * self.batch.element_bytes
        self.gathered_bytes = max(self.gathered_bytes, held)
        num_bytes = self.elements[unit] * self.batch.element_bytes
        work = Collective(CollectiveKind.ALL_GATHER, num_bytes, self.data)
        op = collective("parameter gather", work, self.phase, holds_activation=False)
        return self.order.launch(op)

    def _sum(self, units: Iterable[int]) -> int:
        return sum(self.elements[unit] for unit in units)


def _pass_over(name: str, read_bytes: int, write_bytes: int) -> Op:
    """A kernel over gradients, which are no activations."""
    phase, stream = Phase.WEIGHT_GRADIENT, KernelFamily.STREAM
    return elementwise(name, read_bytes, write_bytes, phase, holds_bytes=0, family=stream)
