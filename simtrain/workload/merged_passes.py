"""Merged passes: a forward and a backward pass of two microbatches, side by side on one rank.

The rank has one compute stream and one stream of collectives, on which it issues the ops of both
passes in turn. An op waits for collectives of its own pass only, so that the exchanges of one pass
with the experts run beside kernels of the other. Sources: Megatron-LM's
`TransformerLayerSchedulePlan.run` (models/common/model_chunk_schedule_plan.py), whose events order
the nodes of one pass; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", Figure 4.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from typing import TypeAlias

from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.passes import Pass, PassOptions, PassRecord
from simtrain.workload.record import record_pass
from simtrain.workload.work import Collective, CollectiveKind


@hashed_once
@dataclass(frozen=True)
class MergedPass:
    """A forward pass of one microbatch and a backward pass (B or I) of another.

    Args:
        forward, backward: the passes.
        delays_weight_gradients: weight gradients follow the exchange after them
            (`issue_order`).
    """

    forward: Pass
    backward: Pass
    delays_weight_gradients: bool = False

    @property
    def options(self) -> PassOptions:
        """The options of both passes."""
        return self.forward.options


@dataclass(frozen=True, eq=False)
class MergedRecord:
    """The ops of both passes.

    Args:
        records: the forward and the backward pass.
        order: [ops] for each op in the order of issue, its place among the ops of the forward and
            then the backward pass.
    """

    records: tuple[PassRecord, PassRecord]
    order: tuple[int, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of both passes, forward first."""
        return tuple(chain.from_iterable(record.segments for record in self.records))

    @property
    def ops(self) -> Iterator[Op]:
        """All ops in the order of issue."""
        ops = [*chain.from_iterable(record.ops for record in self.records)]
        return (ops[place] for place in self.order)

    @cached_property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.order)


RankPass: TypeAlias = Pass | MergedPass
"""What a rank runs at a time."""
RankRecord: TypeAlias = PassRecord | MergedRecord


def record_of(rank_pass: RankPass) -> RankRecord:
    """Record a pass or a merged pass."""
    return record_merged(rank_pass) if isinstance(rank_pass, MergedPass) else record_pass(rank_pass)


@functools.lru_cache(maxsize=1024)
def record_merged(merged: MergedPass) -> MergedRecord:
    """Record the ops of merged passes in issue order."""
    forward, backward = record_pass(merged.forward), record_pass(merged.backward)
    order = issue_order(
        [*forward.ops],
        [*backward.ops],
        delays_weight_gradients=merged.delays_weight_gradients,
    )
    return MergedRecord((forward, backward), tuple(order))


def issue_order(
    forward: Sequence[Op], backward: Sequence[Op], *, delays_weight_gradients: bool = False
) -> list[int]:
    """Return the order in which a rank issues two passes; places of the backward pass come last.

    Each pass is cut into stretches of kernels that end with an exchange between experts. The rank
    issues a stretch of the backward pass, one of the forward pass, and so on; when one pass ends,
    the other continues alone. In a layer with experts these stretches are (forward) attention and
    dispatch, experts and combination; (backward) experts and dispatch, attention and the
    combination of the layer before.

    With `delays_weight_gradients`, kernels of weight gradients of a stretch are issued after its
    exchange (Megatron-LM's --delay-wgrad-compute), which then does not wait for them.
    """
    before = _stretches(forward)
    after = [
        _weight_gradients_last(backward, stretch) if delays_weight_gradients else stretch
        for stretch in _stretches(backward)
    ]
    order: list[int] = []
    for of_backward, of_forward in zip_longest(after, before, fillvalue=()):
        order += (len(forward) + place for place in of_backward)
        order += of_forward
    return order


def is_expert_exchange(op: Op) -> bool:
    """Return whether an op moves tokens to their experts, or back.

    An exchange of counts, which the host reads, is part of the stretch before.
    """
    work = op.work
    if not isinstance(work, Collective) or work.kind is not CollectiveKind.ALL_TO_ALL:
        return False
    if op.informs_host:
        return False
    return "ep" in work.group.axes


def _stretches(ops: Sequence[Op]) -> list[Sequence[int]]:
    """Return the places of each stretch: up to the last of consecutive exchanges."""
    stretches: list[Sequence[int]] = []
    start = 0
    for place, op in enumerate(ops):
        ends = place + 1 == len(ops) or not is_expert_exchange(ops[place + 1])
        if is_expert_exchange(op) and ends:
            stretches.append(range(start, place + 1))
            start = place + 1
    if start < len(ops):
        stretches.append(range(start, len(ops)))
    return stretches


def _weight_gradients_last(ops: Sequence[Op], stretch: Sequence[int]) -> Sequence[int]:
    return sorted(stretch, key=lambda place: _is_delayed(ops[place]))


def _is_delayed(op: Op) -> bool:
    """Return whether an op is a kernel of a weight gradient.

    Collectives stay in place. Transformer Engine gathers the input of a weight gradient again, and
    waits for it, before it puts the kernel into its `WeightGradStore`: a gather that was delayed
    would follow a kernel that waits for it.
    """
    is_kernel = stream_of(op) is Stream.COMPUTE and not op.is_extra
    return is_kernel and op.phase is Phase.WEIGHT_GRADIENT
