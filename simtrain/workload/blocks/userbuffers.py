"""Userbuffers: products of linear layers pipelined with their collectives, chunk by chunk.

Order and ops are the defaults of Transformer Engine's userbuffers (`initialize_ub` of
pytorch/module/base.py and comm_gemm_overlap.cpp, version 2.10), which Megatron-LM uses for QKV,
projection and MLP with --tp-comm-overlap. A ring exchange sends chunks of rows with copy engines. A
pipelined reduce-scatter, and the collectives of a column-parallel layer's backward pass ("bulk"),
run on 16 multiprocessors, and slow the concurrent product like a collective of NCCL. Chunks of a
product run one after another, not on three streams.
"""

from __future__ import annotations

from simtrain.base.mesh import Group
from simtrain.workload.fp8 import FP8_BYTES
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import Microbatch
from simtrain.workload.work import Collective, CollectiveKind, KernelFamily

NUM_SPLITS = 4
"""Chunks of a product with a pipelined reduce-scatter (`num_splits`)."""
NUM_STREAMS = 3
"""Streams of concurrent products, each with a workspace (`_NUM_MAX_UB_STREAMS`)."""
_NUM_GATHERING, _NUM_SCATTERING = 8, 4
"""Buffers for all rows that `initialize_ub` registers, for gathers and for reduce-scatters.

Gathers: ring exchanges (QKV and FC1 forward, gradients of projection and FC2), bulk gathers of QKV
and FC1, and two that only mxfp8 uses. Reduce-scatters: projection and FC2 forward, gradients of QKV
and FC1.
"""


def registered_bytes(batch: Microbatch) -> int:
    """Bytes of all 12 buffers of a rank, of s · b · h elements each; gathers of fp8 are in fp8."""
    gathered = FP8_BYTES if batch.fp8_recipe else batch.element_bytes
    element_bytes = _NUM_GATHERING * gathered + _NUM_SCATTERING * batch.element_bytes
    return batch.tokens * batch.hidden * element_bytes


def multiply_gathered(
    order: IssueOrder, name: str, part_bytes: int, group: Group, chunk: Op
) -> None:
    """Issue a product of rows that a ring gathers: each `chunk` runs while the next is received.

    A rank first copies its own rows, of `part_bytes`, into the buffer. It forwards received rows
    without waiting for their product.
    """
    order.compute(copy_into_buffer(name, part_bytes, chunk.phase, chunk.saves))
    send = Op(f"{name} to next", Collective(CollectiveKind.COPY, part_bytes, group), chunk.phase)
    sends = [order.launch(send) for _ in range(group.num_ranks - 1)]
    for sent in (None, *sends):
        order.wait(sent)
        order.compute(chunk)


def multiply_scattered(order: IssueOrder, chunk: Op, scatter: Op) -> None:
    """Issue a product, each `chunk` of which is reduce-scattered while the next one runs."""
    scattered = None
    for _ in range(NUM_SPLITS):
        order.compute(chunk)
        scattered = order.launch(scatter)
    order.wait(scattered)


def copy_into_buffer(
    name: str, part_bytes: int, phase: Phase, saves: tuple[Tensor, ...] = ()
) -> Op:
    """Return the copy of a rank's own rows into the gathered buffer; `saves` may be these rows."""
    return elementwise(
        f"{name} copy",
        part_bytes,
        part_bytes,
        phase,
        saves=saves,
        holds_bytes=part_bytes,
        family=KernelFamily.STREAM,
    )


def in_buffer(op: Op, num_bytes: int) -> Op:
    """Return the op with `num_bytes` of its tensors in a userbuffer."""
    return op.replace(holds_bytes=max(0, op.holds_bytes - num_bytes))
