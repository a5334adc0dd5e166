"""Fusion of recorded kernels, as a compiler does: torch.compile with Inductor.

A memory-bound kernel that reads what the kernel before it on the stream has written is fused with
it. The result then crosses HBM once less, or twice if it is freed at once: nothing else reads it.
Recordings have shapes and no identities of tensors, so a tensor of the same type and shape is taken
for the same one. Kernels with prices of their own families (norms, softmax, loss) end a chain: they
reduce over rows, as Inductor's do.
"""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.base.values import replace
from simtrain.guests.recording.program import ProgramOp, parse_tensor
from simtrain.workload.issue import Stream, stream_of
from simtrain.workload.ops import Op
from simtrain.workload.work import Elementwise, KernelFamily


def fused(ops: Sequence[ProgramOp], kernels: Sequence[Op | None]) -> list[Op | None]:
    """Return kernels with each chain of memory-bound ones fused into its last; others are None.

    Args:
        ops: of a run.
        kernels: the kernel of each op; None if it runs none.
    """
    result = [*kernels]
    before: int | None = None
    for place, kernel in enumerate(kernels):
        if kernel is None:
            continue
        if before is not None and (joined := _joined(ops, result, before, place)):
            result[before], result[place] = None, joined
        before = place
    return result


def _joined(
    ops: Sequence[ProgramOp], kernels: Sequence[Op | None], first: int, second: int
) -> Op | None:
    """Return the kernel that does the work of two, or None if they stay apart."""
    before, after = kernels[first], kernels[second]
    if before is None or after is None or not (_is_fusible(before) and _is_fusible(after)):
        return None
    if before.phase is not after.phase or ops[second].waits:
        return None
    shared = next((text for text in ops[first].writes if text in ops[second].reads), None)
    assert isinstance(before.work, Elementwise) and isinstance(after.work, Elementwise)
    if shared is None or before.work.family is not KernelFamily.FUSED:
        return None
    num_bytes = parse_tensor(shared).num_bytes
    # Of a chain, only the result of its last kernel is what the next one reads.
    is_freed = ops[second].frees_bytes >= num_bytes
    work = replace(
        after.work,
        read_bytes=before.work.read_bytes + max(0, after.work.read_bytes - num_bytes),
        write_bytes=max(0, before.work.write_bytes - num_bytes * is_freed) + after.work.write_bytes,
    )
    return after.replace(work=work)


def _is_fusible(kernel: Op) -> bool:
    return isinstance(kernel.work, Elementwise) and stream_of(kernel) is Stream.COMPUTE
