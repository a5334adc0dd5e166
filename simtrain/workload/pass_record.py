"""The ops of a pass, segment by segment, and what ZeRO holds meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain, product
from typing import NamedTuple

from simtrain.base.values import dataclass, field
from simtrain.workload.issue import Handle, LaunchKind, OverlapPolicy, Segment, Stream, stream_of
from simtrain.workload.ops import Op
from simtrain.workload.work import Collective


@dataclass(frozen=True, eq=False)
class PassRecord:
    """The ops of a pass.

    Args:
        segments: in issue order.
        owners: for each segment, the place in the chunk of the block whose tensors it saves and
            frees; -1 for collectives and kernels of ZeRO.
        layer_ends: for each layer, the number of segments issued when its work ends.
        waits: pairs of a segment's number and the number of an earlier segment of one collective.
            The first segment, and all that are issued after it, wait for the collective.
        follows: pairs of segments of one collective each. Only the first collective waits for the
            second.
        synchronized: numbers of segments that the host launches after all earlier ones have ended.
        gathered_bytes: peak of the parameters that ZeRO has gathered.
        bucket_bytes: peak of the gradients that ZeRO has not reduced yet.
        exchanged: what ZeRO holds from each segment on at which that changes.
    """

    segments: tuple[Segment, ...]
    owners: tuple[int, ...]
    layer_ends: tuple[int, ...]
    waits: tuple[tuple[int, int], ...] = ()
    follows: tuple[tuple[int, int], ...] = ()
    synchronized: tuple[int, ...] = ()
    gathered_bytes: int = 0
    bucket_bytes: int = 0
    exchanged: tuple[ExchangedBytes, ...] = ()

    @property
    def ops(self) -> Iterator[Op]:
        return chain.from_iterable(segment.ops for segment in self.segments)

    @property
    def unled(self) -> Sequence[int]:
        return ()

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return tuple(accumulate([len(segment.ops) for segment in self.segments], initial=0))

    def joints(self) -> Iterator[tuple[int, int]]:
        """Pairs of an op and a collective of an earlier segment that it waits for.

        The first kernel after an awaited collective waits for it, and so do the collectives issued
        before this kernel.
        """
        for number, collective in self.follows:
            yield self.starts[number], self.starts[collective]
        explicit: dict[int, list[int]] = defaultdict(list)
        for number, collective in self.waits:
            explicit[number].append(self.starts[collective])
        awaited: dict[int, None] = {}
        for number, (segment, start) in enumerate(zip(self.segments, self.starts, strict=False)):
            awaited |= dict.fromkeys(explicit.get(number, ()))
            if awaited:
                kernels = (i for i, op in enumerate(segment.ops) if stream_of(op) is Stream.COMPUTE)
                kernel = next(kernels, None)
                num_waiting = len(segment.ops) if kernel is None else kernel + 1
                yield from product(range(start, start + num_waiting), awaited)
                if kernel is not None:
                    awaited = {}
            if segment.awaited:
                awaited |= dict.fromkeys([start + place for place in segment.awaited])


class ExchangedBytes(NamedTuple):
    """What ZeRO holds besides a rank's shards, from a segment on.

    Args:
        start: number of the segment.
        gathered: bytes of unsharded parameters and of buffers that they are copied from.
        bucket: bytes of gradients that are not reduced, and of buffers that are reduced.
        reduced: bytes of the gradients that the pass has reduced so far.
    """

    start: int
    gathered: int
    bucket: int
    reduced: int


@dataclass
class PassBuilder:
    """Appends segments and single ops to a pass; fields are those of `PassRecord`."""

    overlap: OverlapPolicy
    segments: list[Segment] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    follows: list[tuple[int, int]] = field(default_factory=list)
    layer_ends: list[int] = field(default_factory=list)
    synchronized: list[int] = field(default_factory=list)

    def add(self, segment: Segment, owner: int = -1) -> None:
        self.segments.append(segment)
        self.owners.append(owner)

    def compute(self, op: Op) -> Handle:
        self.add(one_op_segment(op))
        return len(self.segments) - 1

    def launch(self, op: Op, *, after: Handle | None = None) -> Handle | None:
        """Append a collective, after another one if given; a group of one rank has none."""
        assert isinstance(op.work, Collective), "only collectives are launched"
        if op.work.group.num_ranks == 1:
            return None
        handle = len(self.segments)
        self.add(one_op_segment(op))
        if after is not None:
            self.follows.append((handle, after))
        if not self.overlap.hides(op):
            self.wait(handle)
        return handle

    def wait(self, handle: Handle | None) -> None:
        if handle is not None:
            self.waits.append((len(self.segments), handle))

    def synchronize(self) -> None:
        self.synchronized.append(len(self.segments))

    def end_layer(self) -> None:
        self.layer_ends.append(len(self.segments))

    def record(
        self, gathered_bytes: int, bucket_bytes: int, exchanged: Iterable[ExchangedBytes] = ()
    ) -> PassRecord:
        work = tuple(self.segments), tuple(self.owners), tuple(self.layer_ends)
        waits = tuple(self.waits), tuple(self.follows), tuple(self.synchronized)
        return PassRecord(*work, *waits, gathered_bytes, bucket_bytes, tuple(exchanged))


@lru_cache(maxsize=4096)
def one_op_segment(op: Op) -> Segment:
    """Return a segment of one op, which frees the tensors that the op reads."""
    return Segment((op,), ((),), (), (0,), (LaunchKind.CALL,), (op.reads,))
