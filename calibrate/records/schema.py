"""The records of `measurements.jsonl`: a header, then one record a line.

A measurement that continues in the same folder keeps every complete record and measures the missing
ones. A killed measurement may leave a last line without its end, which is dropped. Some records no
machine can have: noisy ones, and times that fall as work grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from calibrate.records import Compute
from simtrain.base.entry import Strict, Text

FILE_NAME = "measurements.jsonl"
LARGEST_COUNT = 10**18
"""Above all sizes, in elements or bytes: their products and rates stay finite numbers."""
SHORTEST_S, LONGEST_S = 1e-12, 1e9
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Seconds = Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S)]

Layout: TypeAlias = Literal["TN", "NN", "NT"]
CollectiveOp: TypeAlias = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"
]


class Timing(Strict):
    """Median seconds of `num_samples` timed runs, and half the distance between their quartiles."""

    median_s: Seconds
    spread_s: Annotated[float, Field(ge=0, le=LONGEST_S)]
    num_samples: Count


class Header(Strict):
    """The machine, its software, and the command of a measurement."""

    kind: Literal["header"] = "header"
    version: Literal[1] = 1
    device: Text
    backend: Literal["nccl", "gloo", "none"]
    num_ranks: Count
    num_nodes: Count = 1
    num_sms: Count
    """Multiprocessors of a GPU, or threads that torch uses on a CPU."""
    memory_bytes: Count
    date: Text
    command: Text
    software: dict[str, str]
    """Versions: torch, python, and of a GPU cuda, driver and nccl."""
    conditions: dict[str, str] = Field(default_factory=dict)
    """Load, clocks, temperatures and power limits, if they can be read."""
    compute: Compute = "bf16"
    """Data type of training in which kernels, collectives, layers and models were measured."""

    @property
    def is_gpu(self) -> bool:
        return "cuda" in self.software


class GemmWork(Strict):
    """A (batched) product C[m, n] = A[m, k] B[k, n]; TN forward, NN input, NT weight gradient.

    Products in fp8 (E4M3, one scale per tensor, a 16-bit result) are all TN: hardware has no other.
    """

    m: Count
    n: Count
    k: Count
    batch: Count = 1
    layout: Layout = "TN"
    dtype: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    accumulate: bool = False


class GemmRecord(GemmWork):
    """A timed product."""

    kind: Literal["gemm"] = "gemm"
    time: Timing


class KernelRecord(Strict):
    """A memory-bound kernel that has to move `num_bytes` (read and written)."""

    kind: Literal["kernel"] = "kernel"
    name: Text
    family: Literal["fused", "stream"]
    num_bytes: Count
    time: Timing


class AttentionRecord(Strict):
    """The core of attention in one causal kernel, forward and backward.

    `heads` counts all sequences; a head has `head_size` channels and `seq_length` tokens.
    """

    kind: Literal["attention"] = "attention"
    heads: Count
    seq_length: Count
    head_size: Count
    forward: Timing
    backward: Timing


class LaunchRecord(Strict):
    """Host seconds of a launch, of many kernels launched without waiting."""

    kind: Literal["launch"] = "launch"
    time: Timing


class CollectiveRecord(Strict):
    """A collective over `num_ranks`; `array_bytes` is the whole array, as nccl-tests counts it.

    `num_groups` such collectives ran at the same time, on `num_nodes` nodes together.
    """

    kind: Literal["collective"] = "collective"
    op: CollectiveOp
    array_bytes: Count
    num_ranks: Annotated[int, Field(ge=2, le=LARGEST_COUNT)]
    num_groups: Count = 1
    num_nodes: Count = 1
    time: Timing


class HostRecord(Strict):
    """A copy between GPU and pinned memory, or an Adam step on the host, on all ranks at once.

    Adam moves `num_bytes` of its states.
    """

    kind: Literal["host"] = "host"
    what: Literal["to_device", "to_host", "adam"]
    num_bytes: Count
    time: Timing


class OverlapRecord(Strict):
    """A product and a collective, each alone and while the other runs."""

    kind: Literal["overlap"] = "overlap"
    what: Text = "a product beside a collective"
    compute_alone: Timing
    compute_beside: Timing
    collective_alone: Timing
    collective_beside: Timing


class LayerRecord(Strict):
    """Forward and backward (recompute included) of one layer, as the scenario splits it.

    `scenario` is plain data of a scenario whose model has that one layer. Records that are
    `held_out` validate profiles, and no fit uses them.
    """

    kind: Literal["layer"] = "layer"
    scenario: dict[str, Any]
    held_out: bool
    forward: Timing
    backward: Timing


class IterationRecord(Strict):
    """Training iterations of the scenario: data, loss, backward, optimizer. No fit uses them.

    `peak_bytes` is the peak of a rank's tensors, on GPUs.
    """

    kind: Literal["iteration"] = "iteration"
    scenario: dict[str, Any]
    time: Timing
    peak_bytes: Count | None = None


class MemoryRecord(Strict):
    """Reserved over allocated memory of CUDA's allocator, and the memory outside the allocator."""

    kind: Literal["memory"] = "memory"
    reserved_over_allocated: Annotated[float, Field(ge=1, le=LARGEST_COUNT)]
    outside_allocator_bytes: Annotated[int, Field(ge=0, le=LARGEST_COUNT)]


Sized = GemmRecord | KernelRecord | CollectiveRecord | HostRecord
"""Records of one size of a series: the time grows with the work."""
_SIZES = "m", "n", "k", "num_bytes", "array_bytes"
"""Fields that differ in a series of records."""
Placed = tuple[int, Sized]
"""A record and its position, from 0."""
_MORE_WORK, _LESS_TIME = 4, 0.5
"""So much more work in so much less time, beyond both spreads, is no noise."""
Measurement: TypeAlias = (
    GemmRecord
    | KernelRecord
    | AttentionRecord
    | LaunchRecord
    | CollectiveRecord
    | HostRecord
    | OverlapRecord
    | LayerRecord
    | IterationRecord
    | MemoryRecord
)
Record: TypeAlias = Header | Measurement

RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def doubtful(records: Sequence[Measurement]) -> list[Measurement]:
    """Noisy records, and both of two that contradict: either may be wrong."""
    contradicting = {at for pair in contradictions(records) for at, _ in pair}
    return [r for at, r in enumerate(records) if at in contradicting or is_noisy(r)]


def is_noisy(record: Measurement) -> bool:
    """True if a time spreads by more than its median."""
    timings = (getattr(record, name) for name in type(record).model_fields)
    return any(isinstance(t, Timing) and t.spread_s > t.median_s for t in timings)


def contradictions(records: Sequence[Measurement]) -> Iterator[tuple[Placed, Placed]]:
    """A record, and one of several times its work that took clearly less time."""
    series: dict[tuple[object, ...], list[Placed]] = {}
    for place, record in enumerate(records):
        if isinstance(record, Sized):
            others = (value for name, value in record if name not in (*_SIZES, "time"))
            series.setdefault(tuple(others), []).append((place, record))
    for placed in series.values():
        for small, large in itertools.permutations(placed, 2):
            (_, less), (_, more) = small, large
            grows = all(getattr(more, size, 0) >= getattr(less, size, 0) for size in _SIZES)
            if grows and work_of(more) >= _MORE_WORK * work_of(less):
                slowest_s = more.time.median_s + more.time.spread_s
                if slowest_s < _LESS_TIME * (less.time.median_s - less.time.spread_s):
                    yield small, large


def work_of(record: Sized) -> int:
    """FLOPs of a product; bytes of all others."""
    if isinstance(record, GemmRecord):
        return 2 * record.batch * record.m * record.n * record.k
    if isinstance(record, CollectiveRecord):
        return record.array_bytes
    return record.num_bytes


def rate_of(record: Sized) -> float:
    """FLOP/s of a product, bytes/s of all others, latency included."""
    return work_of(record) / record.time.median_s


def name_of(record: Sized) -> str:
    """The timed work and its size, in words."""
    if isinstance(record, GemmRecord):
        batch = f"{record.batch} of " if record.batch > 1 else ""
        shape = f"{record.m} × {record.n} × {record.k}"
        return f"{batch}{shape} {record.layout} {record.dtype}"
    if isinstance(record, CollectiveRecord):
        return f"{group_of(record)}, {record.array_bytes} bytes"
    name = record.name if isinstance(record, KernelRecord) else record.what
    return f"{name} of {record.num_bytes} bytes"


def group_of(record: CollectiveRecord) -> str:
    """The collective and its group, in words."""
    groups = f"{record.num_groups} times " if record.num_groups > 1 else ""
    nodes = f" on {record.num_nodes} nodes" if record.num_nodes > 1 else ""
    return f"{groups}{record.op} over {record.num_ranks} ranks{nodes}"
