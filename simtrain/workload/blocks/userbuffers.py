"""Products of linear layers pipelined with their collectives, chunk by chunk (userbuffers).

Order and ops are the defaults of Transformer Engine's userbuffers (`initialize_ub` of
pytorch/module/base.py and comm_gemm_overlap.cpp, version 2.10), which Megatron-LM takes for QKV,
projection and MLP with --tp-comm-overlap. A ring exchange sends chunks of rows by copy engines. A
pipelined reduce-scatter, and the collectives of a column-parallel layer's backward pass ("bulk"),
run on multiprocessors, 16 of them, and slow the product beside them as a collective of NCCL does.
Chunks of a product run one after another, not on three streams.
"""

from __future__ import annotations

from simtrain.workload.fp8 import FP8_BYTES
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Microbatch
from simtrain.workload.work import Collective, CollectiveKind, KernelFamily

NUM_SPLITS = 4
"""Chunks of a product before a reduce-scatter (`num_splits` of the method pipeline)."""
_NUM_GATHERING, _NUM_SCATTERING = 8, 4
"""Buffers for all rows that `initialize_ub` registers, whatever uses them.

Those that are gathered are of the ring exchanges (QKV and FC1 forward, gradients of projection and
FC2), the gathers beside gradients of QKV and FC1, and two that only mxfp8 uses. Those that are
reduce-scattered are of projection and FC2 forward, and of the gradients of QKV and FC1.
"""


def registered_bytes(batch: Microbatch) -> int:
    """Bytes of all buffers of a rank: 12 times s · b · h elements; fp8 is gathered in fp8."""
    gathered = FP8_BYTES if batch.fp8_recipe else batch.element_bytes
    element_bytes = _NUM_GATHERING * gathered + _NUM_SCATTERING * batch.element_bytes
    return batch.tokens * batch.hidden * element_bytes


def multiply_gathered(order: IssueOrder, name: str, gathered: Collective, chunk: Op) -> None:
    """A product of rows that a ring gathers: each `chunk` is multiplied while the next arrives.

    A rank first copies its own rows into the buffer. It sends on what has arrived whether or not
    that has been multiplied.
    """
    group, phase = gathered.group, chunk.phase
    order.compute(copy_into_buffer(name, gathered, phase, chunk.saves))
    work = Collective(CollectiveKind.COPY, gathered.array_bytes // group.num_ranks, group)
    send = Op(f"{name} to next", work, phase)
    sends = [order.launch(send) for _ in range(group.num_ranks - 1)]
    for sent in (None, *sends):
        order.wait(sent)
        order.compute(chunk)


def multiply_scattered(order: IssueOrder, chunk: Op, scatter: Op) -> None:
    """A product, each `chunk` of which is reduce-scattered while the next is multiplied."""
    scattered = None
    for _ in range(NUM_SPLITS):
        order.compute(chunk)
        scattered = order.launch(scatter)
    order.wait(scattered)


def copy_into_buffer(
    name: str, gathered: Collective, phase: Phase, saves: tuple[Tensor, ...] = ()
) -> Op:
    """The copy of a rank's own rows into the buffer that is gathered; `saves` may be these rows."""
    num_bytes = gathered.array_bytes // gathered.group.num_ranks
    return elementwise(
        f"{name} copy",
        num_bytes,
        num_bytes,
        phase,
        saves=saves,
        holds_bytes=num_bytes,
        family=KernelFamily.STREAM,
    )


def in_buffer(op: Op, num_bytes: int) -> Op:
    """The op, with so many bytes of its tensors in a userbuffer and not beside it."""
    return op.replace(holds_bytes=max(0, op.holds_bytes - num_bytes))
