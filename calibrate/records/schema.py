"""The records of `measurements.jsonl`: a header, then one record a line.

A measurement that continues in the same folder keeps every complete record and measures the missing
ones. A killed measurement may leave a last line without its end, which is dropped.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

FILE_NAME = "measurements.jsonl"

Size = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Timing(_Record):
    """Median seconds of `num_samples` timed runs, and half the distance between their quartiles."""

    median_s: Seconds
    spread_s: Annotated[float, Field(ge=0)]
    num_samples: Size


class Header(_Record):
    """The machine, its software, and the command of a measurement."""

    kind: Literal["header"] = "header"
    version: Literal[1] = 1
    device: Text
    backend: Literal["nccl", "gloo", "none"]
    num_ranks: Size
    num_nodes: Size = 1
    num_sms: Size
    """Multiprocessors of a GPU, or threads that torch uses on a CPU."""
    memory_bytes: Size
    date: Text
    command: Text
    software: dict[str, str]
    """Versions: torch, python, and of a GPU cuda, driver and nccl."""
    conditions: dict[str, str] = Field(default_factory=dict)
    """Clocks, temperatures and power limits, if they can be read."""

    @property
    def is_gpu(self) -> bool:
        """True if a GPU was measured, which has a host."""
        return "cuda" in self.software


class GemmWork(_Record):
    """A (batched) product C[m, n] = A[m, k] B[k, n]; TN forward, NN input, NT weight gradient.

    Products in fp8 (E4M3, one scale per tensor, a 16-bit result) are all TN: hardware has no other.
    """

    m: Size
    n: Size
    k: Size
    batch: Size = 1
    layout: Literal["TN", "NN", "NT"] = "TN"
    dtype: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    accumulate: bool = False


class GemmRecord(GemmWork):
    """A timed product."""

    kind: Literal["gemm"] = "gemm"
    time: Timing


class KernelRecord(_Record):
    """A memory-bound kernel that has to move `num_bytes` (read and written)."""

    kind: Literal["kernel"] = "kernel"
    name: Text
    family: Literal["fused", "stream"]
    num_bytes: Size
    time: Timing


class AttentionRecord(_Record):
    """The core of attention in one causal kernel, forward and backward.

    `heads` counts all sequences; a head has `head_size` channels and `seq_length` tokens.
    """

    kind: Literal["attention"] = "attention"
    heads: Size
    seq_length: Size
    head_size: Size
    forward: Timing
    backward: Timing


class LaunchRecord(_Record):
    """Host seconds of a launch, of many kernels launched without waiting."""

    kind: Literal["launch"] = "launch"
    time: Timing


class CollectiveRecord(_Record):
    """A collective over `num_ranks`; `array_bytes` is the whole array, as nccl-tests counts it.

    `num_groups` such collectives ran at the same time, on `num_nodes` nodes together.
    """

    kind: Literal["collective"] = "collective"
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    array_bytes: Size
    num_ranks: Annotated[int, Field(ge=2)]
    num_groups: Size = 1
    num_nodes: Size = 1
    time: Timing


class HostRecord(_Record):
    """A copy between GPU and pinned memory, or an Adam step on the host, on all ranks at once.

    Adam moves `num_bytes` of its states.
    """

    kind: Literal["host"] = "host"
    what: Literal["to_device", "to_host", "adam"]
    num_bytes: Size
    time: Timing


class OverlapRecord(_Record):
    """A product and a collective, each alone and while the other runs."""

    kind: Literal["overlap"] = "overlap"
    what: Text = "a product beside a collective"
    compute_alone: Timing
    compute_beside: Timing
    collective_alone: Timing
    collective_beside: Timing


class LayerRecord(_Record):
    """Forward and backward (recompute included) of one layer, as the scenario splits it.

    `scenario` is plain data of a scenario whose model has that one layer. Records that are
    `held_out` validate profiles, and no fit uses them.
    """

    kind: Literal["layer"] = "layer"
    scenario: dict[str, Any]
    held_out: bool
    forward: Timing
    backward: Timing


class IterationRecord(_Record):
    """Training iterations of the scenario: data, loss, backward, optimizer. No fit uses them.

    `peak_bytes` is the peak of a rank's tensors, on GPUs.
    """

    kind: Literal["iteration"] = "iteration"
    scenario: dict[str, Any]
    time: Timing
    peak_bytes: Size | None = None


class MemoryRecord(_Record):
    """Reserved over allocated memory of CUDA's allocator, and the memory outside the allocator."""

    kind: Literal["memory"] = "memory"
    reserved_over_allocated: Annotated[float, Field(ge=1)]
    outside_allocator_bytes: Annotated[int, Field(ge=0)]


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
