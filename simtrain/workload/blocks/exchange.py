"""Collectives and transfers as nodes. They block, unless an overlap defers the wait.

The backward pass of an all-gather is a reduce-scatter, and vice versa. That of an all-reduce has no
op. That of an all-to-all or a transfer is the reverse exchange.
"""

from __future__ import annotations

from simtrain.base.mesh import Group
from simtrain.workload.ops import Ops, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Tape
from simtrain.workload.work import CollectiveKind


def all_gather(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record an all-gather of rows over a group."""
    kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    return _exchange(tape, x, x.rows * group.num_ranks, group, name, *kinds)


def gather_columns(tape: Tape, x: Tensor, name: str, *, all_tokens: bool = False) -> Tensor:
    """Record a gather of columns: this rank's tokens with the columns of all tensor-parallel ranks.

    All columns are gathered and copied side by side. Under sequence parallelism, only this rank's
    tokens remain, and their gradients are gathered, unless `all_tokens` remain. Source:
    Megatron-LM's `gather_from_tensor_model_parallel_region` and
    `scatter_to_sequence_parallel_region`.
    """
    batch = tape.microbatch
    if batch.tensor.num_ranks == 1:
        return x
    rows = x.rows if all_tokens else batch.local_tokens
    y = tape.tensor(f"{name} output", rows, x.width * batch.tensor.num_ranks)
    whole_bytes, phase = x.num_bytes * batch.tensor.num_ranks, Phase.INPUT_GRADIENT
    gather = CollectiveKind.ALL_GATHER, whole_bytes, batch.tensor
    forward = collective(name, *gather), elementwise(f"{name} copy", whole_bytes, whole_bytes)
    backward: Ops = (elementwise(f"{name} gradient copy", x.num_bytes, x.num_bytes, phase),)
    if batch.sequence_parallel and not all_tokens:
        backward = collective(f"{name} gradient", *gather, phase), *backward
    tape.record(name, (x,), (y,), forward, backward)
    return y


def reduce_scatter(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record a reduce-scatter of rows over a group."""
    kinds = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER
    return _exchange(tape, x, x.rows // group.num_ranks, group, name, *kinds)


def all_reduce(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record an all-reduce over a group, which has no backward op (f̄)."""
    return _exchange(tape, x, x.rows, group, name, CollectiveKind.ALL_REDUCE, None)


def all_to_all(
    tape: Tape,
    x: Tensor,
    group: Group,
    name: str,
    rows: int | None = None,
    *,
    needs_host: bool = False,
) -> Tensor:
    """Record an all-to-all over a group.

    `rows` is the number of rows that this rank receives; by default as many as it sends. The larger
    number determines the duration. `needs_host` is as in `Op`, for the forward pass.
    """
    kind, received = CollectiveKind.ALL_TO_ALL, x.rows if rows is None else rows
    return _exchange(tape, x, received, group, name, kind, kind, needs_host=needs_host)


def send(tape: Tape, x: Tensor, group: Group, name: str) -> Tensor:
    """Record a transfer: each rank of a group sends to the next; return the received tensor."""
    kind = CollectiveKind.SEND
    return _exchange(tape, x, x.rows, group, name, kind, kind)


def _exchange(
    tape: Tape,
    x: Tensor,
    rows: int,
    group: Group,
    name: str,
    there: CollectiveKind,
    back: CollectiveKind | None,
    *,
    needs_host: bool = False,
) -> Tensor:
    y = tape.tensor(f"{name} output", rows, x.width, x.element_bytes)
    whole_bytes = max(x.num_bytes, y.num_bytes)
    backward: Ops = ()
    if back is not None:
        phase = Phase.INPUT_GRADIENT
        backward = (collective(f"{name} gradient", back, whole_bytes, group, phase),)
    forward = collective(name, there, whole_bytes, group).replace(needs_host=needs_host)
    tape.record(name, (x,), (y,), (forward,), backward)
    return y
