"""ZeRO stages 2 and 3 within the passes of a chunk: gather parameters, reduce gradients.

Sources: Rajbhandari et al., "ZeRO" (2020), Section 7; DeepSpeed's runtime/zero/stage_1_and_2.py and
stage3.py; PyTorch's FullyShardedDataParallel. A rank holds only its shard of the gradients. So each
microbatch's gradients are divided by the number of replicas, reduce-scattered unit by unit in the
backward pass, and added to the shard. Stage 3 gathers each unit's parameters before its forward
pass and before its backward pass; a recompute uses the same gather as the backward pass. Blocks
that are not units (embedding, final norm, output layer) form the root unit, as in FSDP. It is
gathered first, stays unsharded for the whole pass, and is reduced last.

States may be sharded over a part of the replicas only (HSDP of FSDP2). Each reduced shard is then
all-reduced over the ranks that hold equal shards. Parameters may stay unsharded from a forward pass
to its backward pass, or be resharded over fewer ranks (`fully_shard`, `reshard_after_forward`).

PyTorch's fully_shard copies through buffers (torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py). On the stream of gathers, a rank casts its fp32 shards of a unit to a flat
array and copies the array into the buffer (`foreach_all_gather`). On the compute stream, the unit's
parameters are copied out of the gathered buffer (`foreach_all_gather_copy_out`), and its gradients
into the buffer that is reduced (`foreach_reduce`). NCCL averages. The reduced shard is added on the
stream of reductions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from simtrain.mesh import Group
from simtrain.workload.fp8 import recipe_of
from simtrain.workload.issue import Handle
from simtrain.workload.ops import Op, Phase, collective, elementwise
from simtrain.workload.tape import Microbatch
from simtrain.workload.work import FP32_BYTES, Collective, CollectiveKind, KernelFamily

ROOT = -1
"""The unit of all blocks that are not units themselves."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the ranks of `data` shard gradients and, in stage 3, parameters.

    Args:
        data: ranks that shard them.
        shards_parameters: stage 3.
        replicate_group: ranks that hold equal shards, over which these are all-reduced; None if
            `data` contains all replicas.
        prefetch: number of units whose parameters are gathered ahead of their use.
        unsharded_until_backward: parameters stay unsharded from a forward pass to its backward
            pass.
        reshard_group: smaller group over which parameters are sharded from a forward pass to its
            backward pass; None for `data`.
        reduces: a backward pass reduces its gradients. Otherwise it adds them to unsharded ones.
        accumulates: reduced gradients are added to those of earlier microbatches.
        fully_shards: PyTorch's fully_shard, with its copies.
    """

    data: Group
    shards_parameters: bool
    replicate_group: Group | None = None
    prefetch: int = 1
    unsharded_until_backward: bool = False
    reshard_group: Group | None = None
    reduces: bool = True
    accumulates: bool = True
    fully_shards: bool = False

    @property
    def last_group(self) -> Group:
        """The ranks of the last collective of a reduction."""
        return self.replicate_group or self.data


class OpIssuer(Protocol):
    """Receives the ops of a pass one by one."""

    def compute(self, op: Op) -> None:
        """Issue a kernel, on the compute stream unless it has a `stream_group`."""

    def launch(self, op: Op, *, after: Handle | None = None) -> Handle | None:
        """Issue a collective, after another one if given."""

    def wait(self, handle: Handle | None) -> None:
        """Make the next op wait for a collective."""


class ShardedPass:
    """The communication of a pass with other replicas.

    A unit's parameters are gathered before its use; with overlap, those of the next units are
    prefetched. At most one reduction runs at a time. `gathered_bytes` and `bucket_bytes` are the
    peaks of unsharded parameters and gradients, which exist besides the rank's shards.

    Args:
        order: receives the ops.
        sharding: what is sharded, and over which ranks.
        elements: parameters of each unit on this rank.
        in_fp8: for each unit, weights that are gathered in fp8.
        batch: the data types of parameters and gradients.
        used: units in the order in which the pass first uses their parameters.
        overlaps: gathers and reductions overlap compute.
        is_forward: whether the pass is a forward pass.
    """

    def __init__(
        self,
        order: OpIssuer,
        sharding: Sharding,
        elements: Mapping[int, int],
        in_fp8: Mapping[int, int],
        batch: Microbatch,
        used: Iterable[int],
        *,
        overlaps: bool,
        is_forward: bool,
    ) -> None:
        self.order, self.elements, self.in_fp8, self.batch = order, elements, in_fp8, batch
        self.sharding, self.overlaps, self.is_forward = sharding, overlaps, is_forward
        self.upcoming: list[int] = []
        self.gathered: set[int] = set()
        self.resharded: set[int] = set()
        self.whole: set[int] = set()
        self.gathered_bytes = self.bucket_bytes = 0
        self._gathering: deque[Handle | None] = deque()
        self._reducing: tuple[int, Handle | None] | None = None
        self._buffer: int | None = None
        if not sharding.shards_parameters:
            return
        units = [unit for unit in used if elements[unit]]
        if is_forward or not sharding.unsharded_until_backward:
            self.upcoming = units
        else:
            self.gathered.update(units)
        if sharding.reshard_group and not is_forward:
            self.resharded.update(units)
        self._count_gathered()

    def need(self, unit: int) -> None:
        """Make the next op wait for a unit's parameters, unless an earlier op has."""
        if not self.upcoming or self.upcoming[0] != unit:
            return
        if not self._gathering:
            self._gather(unit)
        handle = self._gathering.popleft()
        self.upcoming.pop(0)
        if self.sharding.fully_shards:
            self.order.wait(handle)
            self._copy_out(unit)
        if self.overlaps:
            for following in self.upcoming[len(self._gathering) : self.sharding.prefetch]:
                self._gather(following)
        if not self.sharding.fully_shards:
            self.order.wait(handle)
        self.resharded.discard(unit)

    def free(self, unit: int) -> None:
        """Free a unit's parameters, unless they stay unsharded until its backward pass."""
        if self.is_forward and self.sharding.unsharded_until_backward:
            return
        if self.is_forward and self.sharding.reshard_group and unit in self.gathered:
            self.resharded.add(unit)
        self.gathered.discard(unit)
        self._count_gathered()

    def begin(self, unit: int) -> None:
        """Allocate a unit's unsharded gradients, before the first op that computes one of them."""
        if self.sharding.accumulates:
            self.whole.add(unit)
            self._count_buckets()

    def reduce(self, unit: int) -> None:
        """Reduce the complete gradients of a unit."""
        sharding = self.sharding
        if not sharding.reduces or not self.elements[unit]:
            return
        self.finish()
        num_bytes = self.elements[unit] * self.batch.gradient_bytes
        if sharding.fully_shards:
            given = self.elements[unit] * self._given_bytes
            self._count_buckets(num_bytes)
            self.order.compute(_pass_over("gradient copy in", given, num_bytes))
        else:
            self.order.compute(_pass_over("gradient average", num_bytes, num_bytes))
        work = Collective(CollectiveKind.REDUCE_SCATTER, num_bytes, sharding.data)
        handle = self.order.launch(_exchange("gradient reduction", work, Phase.WEIGHT_GRADIENT))
        if sharding.replicate_group:
            work = Collective(
                CollectiveKind.ALL_REDUCE, self._shard_bytes(unit), sharding.replicate_group
            )
            op = _exchange("gradient shard all-reduce", work, Phase.WEIGHT_GRADIENT)
            handle = self.order.launch(op, after=handle)
        self._reducing = unit, handle
        if sharding.fully_shards:
            self._add_reduced(unit)
        if sharding.fully_shards or not self.overlaps:
            self.whole.discard(unit)

    def finish(self) -> None:
        """Wait for the last reduction and add its result to the rank's shard."""
        if self._reducing is None:
            return
        unit, handle = self._reducing
        self.order.wait(handle)
        self.whole.discard(unit)
        if self.sharding.accumulates and not self.sharding.fully_shards:
            shard_bytes = self._shard_bytes(unit)
            self.order.compute(_pass_over("gradient accumulate", 2 * shard_bytes, shard_bytes))
        self._reducing = None

    def _gather(self, unit: int) -> None:
        sharding = self.sharding
        self.gathered.add(unit)
        self._count_gathered()
        num_bytes = self._gathered_bytes(unit)
        group = sharding.data if self.is_forward else sharding.reshard_group or sharding.data
        if sharding.fully_shards:
            self._copy_in(unit, group)
        work = Collective(CollectiveKind.ALL_GATHER, num_bytes, group)
        op = _exchange("parameter gather", work, self._phase)
        self._gathering.append(self.order.launch(op))

    def _copy_in(self, unit: int, group: Group) -> None:
        """Cast a rank's shard of a unit to a flat array, and copy it into the gathered buffer."""
        size, ranks = self._gathered_bytes(unit, group.num_ranks), group.num_ranks
        casts = self.batch.element_bytes != FP32_BYTES
        kept = FP32_BYTES * -(-self.elements[unit] // ranks)
        if group is self.sharding.reshard_group:
            kept = size
        sizes = kept + size * casts, size * (1 + casts)
        self.order.compute(_pass_over("parameter copy in", *sizes, self._phase, stream_group=group))

    def _copy_out(self, unit: int) -> None:
        """Copy a unit's parameters out of the buffer; a forward pass frees it one unit later."""
        num_bytes = self._gathered_bytes(unit)
        self.order.compute(_pass_over("parameter copy out", num_bytes, num_bytes, self._phase))
        self._buffer = unit
        self._count_gathered()
        if not self.is_forward:
            self._buffer = None

    def _add_reduced(self, unit: int) -> None:
        """Add a reduced gradient to the rank's fp32 shard; without accumulation, only cast it."""
        shard = -(-self.elements[unit] // self.sharding.data.num_ranks)
        given, adds = self.batch.gradient_bytes, self.sharding.accumulates
        if adds or given != FP32_BYTES:
            read, group = given + FP32_BYTES * adds, self.sharding.last_group
            name, phase = "gradient accumulate", Phase.WEIGHT_GRADIENT
            op = _pass_over(name, read * shard, FP32_BYTES * shard, phase, stream_group=group)
            self.order.compute(op)

    @property
    def _phase(self) -> Phase:
        return Phase.FORWARD if self.is_forward else Phase.INPUT_GRADIENT

    @property
    def _given_bytes(self) -> int:
        """Bytes of a gradient element before the reduction."""
        sharding, batch = self.sharding, self.batch
        copies = sharding.fully_shards and sharding.accumulates
        return batch.element_bytes if copies else batch.gradient_bytes

    def _count_buckets(self, copied_bytes: int = 0) -> None:
        """Update the peak of unsharded gradients and of buffers that are reduced or filled."""
        held = self._sum(self.whole) * self._given_bytes + copied_bytes
        if self.sharding.fully_shards and self._reducing and self.overlaps:
            held += self.elements[self._reducing[0]] * self.batch.gradient_bytes
        self.bucket_bytes = max(self.bucket_bytes, held)

    def _count_gathered(self) -> None:
        held = sum(self._gathered_bytes(unit) for unit in self.gathered)
        if self._buffer is not None:
            held += self._gathered_bytes(self._buffer)
        if self.sharding.reshard_group:
            ranks = self.sharding.reshard_group.num_ranks
            held += sum(self._gathered_bytes(unit, ranks) for unit in self.resharded)
        self.gathered_bytes = max(self.gathered_bytes, held)

    def _gathered_bytes(self, unit: int, ranks: int = 1) -> int:
        """Bytes of a unit's gathered parameters, or of the shard of one of `ranks` ranks."""
        fp8 = self.in_fp8[unit]
        part = self.batch.element_bytes * -(-(self.elements[unit] - fp8) // ranks)
        return part + recipe_of(self.batch).weight_bytes(-(-fp8 // ranks)) if fp8 else part

    def _shard_bytes(self, unit: int) -> int:
        shard = -(-self.elements[unit] // self.sharding.data.num_ranks)
        return shard * self.batch.gradient_bytes

    def _sum(self, units: Iterable[int]) -> int:
        return sum(self.elements[unit] for unit in units)


def _exchange(name: str, work: Collective, phase: Phase) -> Op:
    return collective(name, work, phase, holds_activation=False)


def _pass_over(
    name: str,
    read_bytes: int,
    write_bytes: int,
    phase: Phase = Phase.WEIGHT_GRADIENT,
    stream_group: Group | None = None,
) -> Op:
    """Return a kernel on parameters or gradients, which do not count as activations."""
    stream = KernelFamily.STREAM
    op = elementwise(name, read_bytes, write_bytes, phase, holds_bytes=0, family=stream)
    return op if stream_group is None else op.replace(stream_group=stream_group)
