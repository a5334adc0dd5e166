"""Memory of the passes of PyTorch's fully_shard, with its gathers and reductions at their times.

Other forms of ZeRO count the peaks of both as buffers of the whole iteration (`memory.buffers`).
With fully_shard a pass has them when its ops need them: the loss is computed while parameters are
resharded, and a step that keeps no gradients (`zero_grad(set_to_none=True)`) starts without any. So
the loss of a large vocabulary and the gradients of layers are not held at the same time.

The root's parameters are resharded when the model returns its logits, and gathered again by a hook
that runs when the gradient of the logits arrives (torch/distributed/fsdp/_fully_shard/
_fsdp_state.py, `_post_forward` and `_pre_backward`). So the loss, which is not part of the model,
runs without them.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from simtrain.iteration.memory.working import PassMemory, moments_of, pass_memory
from simtrain.iteration.plan import Plan
from simtrain.workload.passes import ExchangedBytes, Pass, PassRecord
from simtrain.workload.record import record_pass
from simtrain.workload.shard_groups import Sharding
from simtrain.workload.work import Product

_NOTHING = ExchangedBytes(0, 0, 0, 0)


def times_exchanges(plan: Plan) -> bool:
    """Whether the memory of a plan's passes includes what fully_shard gathers and reduces."""
    sharding = plan.options.sharding
    return sharding is not None and _is_timed(sharding) and not plan.offloads


def makes_gradients(plan: Plan) -> bool:
    """Whether the only backward pass makes the gradients, which no pass starts with."""
    sharding = plan.options.sharding
    return times_exchanges(plan) and sharding is not None and sharding.is_only_microbatch


def _is_timed(sharding: Sharding) -> bool:
    is_in_passes = sharding.reduces and sharding.accumulates and sharding.shards_parameters
    return sharding.fully_shards and is_in_passes and sharding.host is None


@functools.lru_cache(maxsize=65536)
def memory_with_exchanges(pass_: Pass) -> PassMemory:
    """Return the memory of a pass with what it gathers and reduces at each of its ops."""
    memory, sharding = pass_memory(pass_), pass_.options.sharding
    assert sharding is not None, "parameters are sharded"
    counts_reduced = sharding.is_only_microbatch  # otherwise gradients stay for the iteration
    peak_bytes, result = -1, memory
    ops = zip(moments_of(pass_), _exchanged(pass_), strict=True)
    for (held_bytes, recomputed_bytes, op), exchanged in ops:
        reduced_bytes = exchanged.reduced * counts_reduced
        total_bytes = held_bytes + exchanged.gathered + exchanged.bucket + reduced_bytes
        if total_bytes <= peak_bytes:
            continue
        peak_bytes = total_bytes
        extra_bytes = max(0, total_bytes - memory.saved_bytes)
        result = replace(
            memory,
            extra_bytes=extra_bytes,
            recomputed_bytes=recomputed_bytes,
            op=op,
            gathered_bytes=exchanged.gathered,
            bucket_bytes=exchanged.bucket,
            gradients_bytes=reduced_bytes,
        )
    return result


def _exchanged(pass_: Pass) -> Iterator[ExchangedBytes]:
    """Yield what a pass holds besides shards while each of its ops runs."""
    record, sharding = record_pass(pass_), pass_.options.sharding
    starts = [each.start for each in record.exchanged]
    stays = sharding is None or sharding.unsharded_until_backward
    loss = range(0) if stays else _ops_of_loss(record, is_backward=pass_.kind == "B")
    for number, segment in enumerate(record.segments):
        place = bisect_right(starts, number)
        exchanged = record.exchanged[place - 1] if place else _NOTHING
        for op in range(record.starts[number], record.starts[number] + len(segment.ops)):
            yield _NOTHING if op in loss else exchanged


def _ops_of_loss(record: PassRecord, *, is_backward: bool) -> range:
    """Return the ops after the last product of the last block, or before its first gradient's."""
    blocks = [number for number, owner in enumerate(record.owners) if owner >= 0]
    number = blocks[0 if is_backward else -1]
    ops, start, end = record.segments[number].ops, *record.starts[number : number + 2]
    outside = takewhile(
        lambda op: not isinstance(op.work, Product), ops if is_backward else reversed(ops)
    )
    length = len([*outside])
    return range(start, start + length) if is_backward else range(end - length, end)
