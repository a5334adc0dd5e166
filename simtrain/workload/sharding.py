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
to its backward pass (`fully_shard`, `reshard_after_forward`).

PyTorch's fully_shard copies through buffers (torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py). On the stream of gathers, a rank casts its fp32 shards of a unit to a flat
array and copies the array into the buffer (`foreach_all_gather`). On the compute stream, the unit's
parameters are copied out of the gathered buffer (`foreach_all_gather_copy_out`), and its gradients
into the buffer that is reduced (`foreach_reduce`). NCCL averages. The reduced shard is added on the
stream of reductions.

DeepSpeed of 2021 (partition_parameters.py and stage3.py of that spring) gathers and reduces each
tensor by itself. ProcessGroupNCCL.cpp copies the slices of all ranks one by one, in a loop of the
host. Before a submodule runs, the host waits for its parameters and so for the GPU. Tensors are
gathered again after a recompute, if many others are used in between, and small ones stay.

Experts may have another number of replicas than the other parameters. They are then gathered and
reduced over their own group, in collectives of their own: torchtitan makes the experts of a layer
their own unit of fully_shard and prefetches it together with the rest of the layer (`apply_fsdp` in
torchtitan/models/llama4/infra/parallelize.py), and Megatron-FSDP gives them buffers of their own.

Frozen weights are sharded and gathered with the others, in every pass; only gradients of adapters
are reduced. Sources: fully_shard's `post_backward` reduces parameters with a gradient
(_fsdp_param_group.py); Megatron-FSDP has no gradient buffer for frozen ones
(`only_create_grad_buffer_and_main_weight_buffer_for_param_requires_grad`); DeepSpeed's stage3.py
partitions all of them and hooks only those that require a gradient.

PyTorch waits for the experts' parameters inside a layer, and reduces their gradients there. Here a
layer waits for both gathers at its start, and starts both reductions at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import accumulate, chain

from simtrain.base.mesh import Group, Mesh
from simtrain.base.values import dataclass
from simtrain.scenario import Scenario
from simtrain.workload.chunk import (
    ROOT,
    SMALL_TENSOR,
    Chunk,
    Parameters,
    unit_parameters,
    unit_tensors,
)
from simtrain.workload.fp8 import recipe_of
from simtrain.workload.issue import Handle
from simtrain.workload.ops import Op, Phase, collective, elementwise
from simtrain.workload.pass_record import ExchangedBytes, PassBuilder
from simtrain.workload.tape import Microbatch, Parameter
from simtrain.workload.work import FP32_BYTES, CollectiveKind, KernelFamily


@dataclass(frozen=True, slots=True)
class ShardGroups:
    """Groups of ranks that shard the same parameters.

    Args:
        data: ranks that shard them.
        replicate_group: ranks that hold equal shards, over which these are all-reduced; None if
            `data` contains all replicas.
    """

    data: Group
    replicate_group: Group | None = None


@dataclass(frozen=True, slots=True)
class Sharding:
    """How ranks shard gradients and, in stage 3, parameters.

    Args:
        groups: ranks that shard them.
        shards_parameters: stage 3.
        expert_groups: ranks that shard those of experts; None if experts have as many replicas as
            other parameters, with which they are then gathered and reduced.
        prefetch: number of units whose parameters are gathered ahead of their use.
        unsharded_until_backward: parameters stay unsharded from a forward pass to its backward
            pass.
        reduces: a backward pass reduces its gradients. Otherwise it adds them to unsharded ones.
        accumulates: reduced gradients are added to those of earlier microbatches.
        is_only_microbatch: there are none. PyTorch's fully_shard then keeps the reduced gradients
            as they are (_fsdp_collectives.py, `foreach_reduce`: `to_accumulate_grad`).
        fully_shards: PyTorch's fully_shard, with its copies.
        lists_tensors: each tensor is gathered and reduced by itself, as a list of slices.
    """

    groups: ShardGroups
    shards_parameters: bool
    expert_groups: ShardGroups | None
    prefetch: int
    unsharded_until_backward: bool
    reduces: bool
    accumulates: bool
    is_only_microbatch: bool
    fully_shards: bool
    lists_tensors: bool


def shard_ranks(scenario: Scenario, mesh: Mesh) -> int:
    """Number of ranks that shard model states."""
    return (scenario.memory.shard_over or mesh.copies * mesh.dp) * mesh.cp


def replicate_group(scenario: Scenario, mesh: Mesh) -> Group | None:
    """Return the ranks that hold equal shards, or None if all replicas shard the states."""
    return _replicate_group(mesh, shard_ranks(scenario, mesh))


def expert_groups(scenario: Scenario, mesh: Mesh) -> tuple[Group | None, Group | None]:
    """Return the ranks that shard states of experts, and the ranks that hold equal shards of them.

    Ranks that together hold one copy of all other states also hold one copy of the experts
    (torchtitan's mesh of (dp_replicate, efsdp), Megatron-LM's intra- and inter-partial expert-data
    groups). Both groups are None for a dense model.
    """
    experts = scenario.expert_mesh(mesh)
    if experts is None:
        return None, None
    num_ranks = shard_ranks(scenario, mesh) * mesh.tp // experts.size("tp", "ep")
    return experts.shard_group(num_ranks), _replicate_group(experts, num_ranks)


def _replicate_group(mesh: Mesh, num_ranks: int) -> Group | None:
    return mesh.replicate_group(num_ranks) if num_ranks < mesh.data_group.num_ranks else None


def sharding_of(scenario: Scenario, mesh: Mesh) -> Sharding:
    """Return what the passes of ZeRO stages 2 and 3 shard."""
    memory = scenario.memory
    groups = ShardGroups(
        mesh.shard_group(shard_ranks(scenario, mesh)),
        replicate_group(scenario, mesh),
    )
    experts, joined = expert_groups(scenario, mesh)
    return Sharding(
        groups,
        memory.zero_stage == 3,
        ShardGroups(experts, joined)
        if experts and experts.num_ranks != groups.data.num_ranks
        else None,
        scenario.overlap.prefetch,
        unsharded_until_backward=not memory.reshard_after_forward,
        reduces=mesh.pp == 1,
        accumulates=scenario.reduces_every_microbatch,
        is_only_microbatch=scenario.num_microbatches == 1,
        fully_shards=scenario.fully_shards,
        lists_tensors=scenario.lists_tensors,
    )


_MOST_LIVE, _BUCKET = 1_000_000_000, 500_000_000
"""DeepSpeed's `stage3_max_live_parameters`, also its `max_reuse_distance`; `reduce_bucket_size`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Parameters of a unit that the same ranks shard: those of experts, or all others.

    `trained` of its elements have gradients. `tensors` are the elements of each parameter, if each
    is gathered and reduced by itself, and `trained_tensors` those of trained ones.
    """

    elements: int
    trained: int
    in_fp8: int
    groups: ShardGroups
    tensors: tuple[int, ...] = ()
    trained_tensors: tuple[int, ...] = ()

    def gathered(self, *, again: bool) -> tuple[int, ...]:
        """Elements of the arrays that are gathered, or gathered again after a recompute."""
        if not self.tensors:
            return (self.elements,)
        # Between a tensor's recompute and its backward pass, each later one is used twice.
        later = reversed([*accumulate(reversed(self.tensors), initial=0)][:-1])
        return tuple(
            elements
            for elements, after in zip(self.tensors, later, strict=True)
            if elements >= SMALL_TENSOR and (2 * after >= _MOST_LIVE or not again)
        )

    @property
    def has_one_rank(self) -> bool:
        return self.groups.data.num_ranks == 1


class ShardedPass:
    """The communication of a pass with other replicas.

    A unit's parameters are gathered before its use; with overlap, those of the next units are
    prefetched. The reductions of one unit at most run at a time. `gathered_bytes` and
    `bucket_bytes` are the peaks of unsharded parameters and gradients, which exist besides the
    rank's shards. `exchanged` has both over time.

    Args:
        order: receives the ops.
        chunk, batch: what runs.
        sharding: what is sharded, and over which ranks.
        used: units in the order in which the pass first uses their parameters.
    """

    def __init__(
        self,
        order: PassBuilder,
        chunk: Chunk,
        batch: Microbatch,
        sharding: Sharding,
        used: Iterable[int],
        *,
        is_forward: bool,
    ) -> None:
        self.order, self.sharding, self.batch, self.is_forward = order, sharding, batch, is_forward
        self.overlaps = "dp" in order.overlap.asynchronous
        lists = sharding.lists_tensors and sharding.groups.data.num_ranks > 1
        tensors = unit_tensors(chunk, batch) if lists else {}
        self.parts = {
            unit: _parts(
                sharding, parameters, batch.fp8_weights == "gathered", tensors.get(unit, ())
            )
            for unit, parameters in unit_parameters(chunk, batch).items()
        }
        self._largest = max((x.elements for x in chain(*tensors.values())), default=0)
        live = self._largest and self._largest + sum(x.elements for x in tensors[ROOT])
        self._prefetches = self.overlaps and live < _MOST_LIVE
        self.upcoming: list[int] = []
        self.gathered: set[_Part] = set()
        self.whole: set[_Part] = set()
        self.gathered_bytes = self.bucket_bytes = 0
        self.exchanged: list[ExchangedBytes] = []
        self._held_bytes = {"gathered": 0, "bucket": 0, "reduced": 0}
        self._gathering: deque[list[Handle | None]] = deque()
        self._reducing: list[tuple[_Part, Handle | None]] = []
        self._buffer: _Part | None = None
        self._used: set[int] = set()
        if not sharding.shards_parameters:
            return
        needed = [unit for unit in used if self.parts[unit]]
        parts = [part for unit in needed for part in self.parts[unit] if self._is_copied(part)]
        if self.is_forward or not sharding.unsharded_until_backward:
            self.upcoming = needed
        else:
            self.gathered.update(parts)
        self._count_gathered()

    def need(self, unit: int) -> None:
        """Make the next op wait for a unit's parameters, unless an earlier op has."""
        if not self.upcoming or self.upcoming[0] != unit:
            return
        self._synchronize()
        if not self._gathering:
            self._gather(unit)
            self._synchronize()
        handles, parts = self._gathering.popleft(), self.parts[unit]
        self.upcoming.pop(0)
        if self.sharding.fully_shards:
            for part, handle in zip(parts, handles, strict=True):
                self.order.wait(handle)
                self._copy_out(part)
        if self._prefetches:
            for following in self.upcoming[len(self._gathering) : self.sharding.prefetch]:
                self._gather(following)
        if not self.sharding.fully_shards:
            for handle in handles:
                self.order.wait(handle)

    def _synchronize(self) -> None:
        if self._largest:
            self.order.synchronize()

    def free(self, unit: int) -> None:
        """Free a unit's parameters, unless they stay unsharded until its backward pass."""
        if self.is_forward and self.sharding.unsharded_until_backward:
            return
        for part in self.parts[unit]:
            self.gathered.discard(part)
        self._count_gathered()

    def begin(self, unit: int) -> None:
        """Allocate a unit's unsharded gradients, before the first op that computes one of them."""
        if self.sharding.accumulates:
            self.whole.update(self.parts[unit])
            self._count_buckets()

    def reduce(self, unit: int) -> None:
        """Reduce the complete gradients of a unit, those of experts first."""
        parts = [part for part in self.parts[unit] if part.trained]
        if not self.sharding.reduces or not parts:
            return
        self.finish()
        for part in reversed(parts):
            self._reduce(part)

    def finish(self) -> None:
        """Wait for the last reductions and add their results to the rank's shards."""
        for _, handle in self._reducing:
            self.order.wait(handle)
        for part, _ in self._reducing:
            self.whole.discard(part)
            if self.sharding.accumulates and not self.sharding.fully_shards:
                shard_bytes = self._shard_bytes(part)
                self.order.compute(_pass_over("gradient accumulate", 2 * shard_bytes, shard_bytes))
        self._reducing = []
        self._count_buckets()

    def _reduce(self, part: _Part) -> None:
        sharding, groups = self.sharding, part.groups
        num_bytes = part.trained * self.batch.gradient_bytes
        if sharding.fully_shards:
            gradient_bytes = part.trained * self._given_bytes
            self._count_buckets(num_bytes)
            self.order.compute(_pass_over("gradient copy in", gradient_bytes, num_bytes))
        else:
            self.order.compute(_pass_over("gradient average", num_bytes, num_bytes))
        phase, kind, handle = Phase.WEIGHT_GRADIENT, CollectiveKind.REDUCE_SCATTER, None
        for elements in part.trained_tensors or (part.trained,):
            work = kind, elements * self.batch.gradient_bytes, groups.data
            if part.tensors:
                self._copy_slices("gradient copy in", work[1], phase, groups.data)
            op = collective("gradient reduction", *work, phase, holds_bytes=0)
            handle = self.order.launch(op)
        if sharding.fully_shards and part.has_one_rank:
            op = _pass_over("gradient copy", num_bytes, num_bytes, stream_group=groups.data)
            self.order.compute(op)
        if groups.replicate_group:
            work = CollectiveKind.ALL_REDUCE, self._shard_bytes(part), groups.replicate_group
            op = collective("gradient shard all-reduce", *work, phase, holds_bytes=0)
            handle = self.order.launch(op, after=handle)
        self._reducing.append((part, handle))
        if sharding.fully_shards:
            self._add_reduced(part)
        if sharding.fully_shards or not self.overlaps:
            self.whole.discard(part)
        self._note("reduced", self._held_bytes["reduced"] + self._shard_bytes(part))
        self._count_buckets()

    def _note(self, name: str, num_bytes: int) -> None:
        self._held_bytes[name] = num_bytes
        self.exchanged.append(ExchangedBytes(len(self.order.segments), **self._held_bytes))

    def _gather(self, unit: int) -> None:
        gather = partial(self._gather_part, again=unit in self._used)
        self._gathering.append([*map(gather, self.parts[unit])])
        self._used.add(unit)

    def _gather_part(self, part: _Part, *, again: bool) -> Handle | None:
        if part.has_one_rank:
            return None
        sharding, groups = self.sharding, part.groups
        self.gathered.add(part)
        self._count_gathered()
        num_bytes, handle = self._gathered_bytes(part), None
        group = groups.data
        if sharding.fully_shards:
            self._copy_in(part, group)
        for elements in part.gathered(again=again):
            if part.tensors:
                num_bytes = elements * self.batch.element_bytes
                self.order.compute(_pass_over("parameter buffer fill", 0, num_bytes, self._phase))
            work = CollectiveKind.ALL_GATHER, num_bytes, group
            op = collective("parameter gather", *work, self._phase, holds_bytes=0)
            handle = self.order.launch(op)
            if part.tensors:
                handle = self._copy_slices("parameter copy out", num_bytes, self._phase, group)
        return handle

    def _copy_slices(self, name: str, num_bytes: int, phase: Phase, group: Group) -> Handle:
        """Copy the slices of a list; each copy runs while the host launches the next one."""
        op = _pass_over(name, num_bytes, num_bytes, phase, stream_group=group)
        return self.order.compute(op.replace(num_slices=group.num_ranks))

    def _copy_in(self, part: _Part, group: Group) -> None:
        """Cast a rank's shard of a unit to a flat array, and copy it into the gathered buffer.

        The parameters of one rank are not gathered: they are cast and copied on the compute stream.
        """
        size, ranks = self._gathered_bytes(part, group.num_ranks), group.num_ranks
        casts = self.batch.element_bytes != FP32_BYTES
        kept = FP32_BYTES * -(-part.elements // ranks)
        sizes = kept + size * casts, size * (1 + casts)
        stream = None if part.has_one_rank else group
        self.order.compute(
            _pass_over("parameter copy in", *sizes, self._phase, stream_group=stream)
        )

    def _copy_out(self, part: _Part) -> None:
        """Copy parameters out of their buffer; a forward pass frees it at the next copy."""
        self._buffer = None if part.has_one_rank else part
        if part.has_one_rank:
            self.gathered.add(part)
            self._copy_in(part, part.groups.data)
        else:
            num_bytes = self._gathered_bytes(part)
            self.order.compute(_pass_over("parameter copy out", num_bytes, num_bytes, self._phase))
        self._count_gathered()
        if not self.is_forward:
            self._buffer = None

    def _add_reduced(self, part: _Part) -> None:
        """Add a reduced gradient to the rank's fp32 shard; without accumulation, only cast it."""
        shard = -(-part.trained // part.groups.data.num_ranks)
        gradient_bytes = self.batch.gradient_bytes
        adds = self.sharding.accumulates and not self.sharding.is_only_microbatch
        if adds or gradient_bytes != FP32_BYTES:
            read = gradient_bytes + FP32_BYTES * adds
            group = part.groups.replicate_group or part.groups.data
            name, phase = "gradient accumulate", Phase.WEIGHT_GRADIENT
            op = _pass_over(name, read * shard, FP32_BYTES * shard, phase, stream_group=group)
            self.order.compute(op)

    def _is_copied(self, part: _Part) -> bool:
        """Whether a part's unsharded parameters are another array than the rank's shard."""
        return self.sharding.fully_shards or not part.has_one_rank

    @property
    def _phase(self) -> Phase:
        return Phase.FORWARD if self.is_forward else Phase.INPUT_GRADIENT

    @property
    def _given_bytes(self) -> int:
        sharding, batch = self.sharding, self.batch
        copies = sharding.fully_shards and sharding.accumulates
        return batch.element_bytes if copies else batch.gradient_bytes

    def _count_buckets(self, copied_bytes: int = 0) -> None:
        """Update the peak of unsharded gradients and of buffers that are reduced or filled."""
        held_bytes = sum(part.trained for part in self.whole) * self._given_bytes + copied_bytes
        if self.sharding.fully_shards and self.overlaps:
            reduced = sum(part.trained for part, _ in self._reducing)
            held_bytes += reduced * self.batch.gradient_bytes
        if self._largest:  # two buckets, a tensor that is larger than a bucket, and its flat array
            most = 2 * (_BUCKET + self._largest)
            held_bytes = min(held_bytes, most * self.batch.gradient_bytes)
        self.bucket_bytes = max(self.bucket_bytes, held_bytes)
        self._note("bucket", held_bytes)

    def _count_gathered(self) -> None:
        held_bytes = sum(map(self._gathered_bytes, self.gathered))
        if self._buffer is not None:
            held_bytes += self._gathered_bytes(self._buffer)
        if self._largest:  # the tensor in use, the next one and its flat array
            held_bytes = min(held_bytes, 3 * self._largest * self.batch.element_bytes)
        self.gathered_bytes = max(self.gathered_bytes, held_bytes)
        self._note("gathered", held_bytes)

    def _gathered_bytes(self, part: _Part, ranks: int = 1) -> int:
        fp8 = part.in_fp8
        wide = self.batch.element_bytes * -(-(part.elements - fp8) // ranks)
        return wide + recipe_of(self.batch).weight_bytes(-(-fp8 // ranks)) if fp8 else wide

    def _shard_bytes(self, part: _Part) -> int:
        return -(-part.trained // part.groups.data.num_ranks) * self.batch.gradient_bytes


def _parts(
    sharding: Sharding, parameters: Parameters, gathers_fp8: bool, tensors: tuple[Parameter, ...]
) -> tuple[_Part, ...]:
    """Return the parts of a unit that have parameters, those of experts last.

    If weights are gathered in fp8, all of the experts are.
    """
    groups, experts, trained = sharding.expert_groups, parameters.experts, parameters.trained
    in_fp8, total = parameters.in_fp8 * gathers_fp8, (parameters.total, trained.total)
    if groups is None or not experts:
        sizes = tuple(x.elements for x in tensors)
        with_gradient = tuple(x.elements for x in tensors if not x.is_frozen)
        part = _Part(*total, in_fp8, sharding.groups, sizes, with_gradient)
        return (part,) if parameters.total else ()
    of_experts = experts if in_fp8 else 0
    numbers = total[0] - experts, total[1] - trained.experts
    rest = _Part(*numbers, in_fp8 - of_experts, sharding.groups)
    last = _Part(experts, trained.experts, of_experts, groups)
    return (*((rest,) if rest.elements else ()), last)


def _pass_over(
    name: str,
    read_bytes: int,
    write_bytes: int,
    phase: Phase = Phase.WEIGHT_GRADIENT,
    stream_group: Group | None = None,
) -> Op:
    stream = KernelFamily.STREAM
    op = elementwise(name, read_bytes, write_bytes, phase, holds_bytes=0, family=stream)
    return op.replace(stream_group=stream_group)
