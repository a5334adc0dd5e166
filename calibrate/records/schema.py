"""What a measurement leaves on disk: `measurements.jsonl`, one record a line, written as it comes.

The first line is the header. A run that is started again in the same folder keeps every complete
record and measures what is missing; a last line without its end is what a kill left: it is dropped.
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
    """What was measured, where and how."""

    kind: Literal["header"] = "header"
    version: Literal[1] = 1
    device: Text
    backend: Literal["nccl", "gloo", "none"]
    num_ranks: Size
    num_nodes: Size = 1
    num_sms: Size
    """Multiprocessors, or of a CPU the threads that torch uses."""
    memory_bytes: Size
    date: Text
    command: Text
    software: dict[str, str]
    """Versions: torch, python, and cuda, driver, nccl where they are."""
    conditions: dict[str, str] = Field(default_factory=dict)
    """Clocks, temperatures and power limits, where they can be read."""

    @property
    def is_gpu(self) -> bool:
        """Whether a GPU was measured, which has a host beside it."""
        return "cuda" in self.software


class GemmRecord(_Record):
    """A (batched) product C[m, n] = A[m, k] B[k, n]; TN forward, NN input, NT weight gradient.

    Products in fp8 (E4M3, one scale a tensor, a 16-bit result) are all TN: no other is in hardware.
    """

    kind: Literal["gemm"] = "gemm"
    m: Size
    n: Size
    k: Size
    batch: Size = 1
    layout: Literal["TN", "NN", "NT"] = "TN"
    dtype: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    accumulate: bool = False
    time: Timing


class KernelRecord(_Record):
    """A memory-bound kernel that has to move `num_bytes` (read and written)."""

    kind: Literal["kernel"] = "kernel"
    name: Text
    family: Literal["fused", "stream"]
    num_bytes: Size
    time: Timing


class AttentionRecord(_Record):
    """The core of attention in one causal kernel: forward, and backward from what that kept.

    `heads` are those of all sequences; each has `head_size` channels and `seq_length` tokens.
    """

    kind: Literal["attention"] = "attention"
    heads: Size
    seq_length: Size
    head_size: Size
    forward: Timing
    backward: Timing


class LaunchRecord(_Record):
    """Host seconds for each of many kernels launched one after another without waiting."""

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
    """What the host of a GPU does for it, on all ranks at once: each has its share.

    Copies between GPU and pinned memory, one way; or Adam, which moves `num_bytes` of its states.
    """

    kind: Literal["host"] = "host"
    what: Literal["to_device", "to_host", "adam"]
    num_bytes: Size
    time: Timing


class OverlapRecord(_Record):
    """A product alone and beside a running collective; likewise the collective."""

    kind: Literal["overlap"] = "overlap"
    what: Text = "a product beside a collective"
    compute_alone: Timing
    compute_beside: Timing
    collective_alone: Timing
    collective_beside: Timing


class LayerRecord(_Record):
    """Forward and backward (recompute included) of one layer, as the scenario splits it.

    `scenario` is a scenario's plain data whose model has that one layer. What is `held_out` is for
    validation and never for a fit.
    """

    kind: Literal["layer"] = "layer"
    scenario: dict[str, Any]
    held_out: bool
    forward: Timing
    backward: Timing


class IterationRecord(_Record):
    """Whole training iterations of the scenario: data, loss, backward, optimizer. Always held out.

    `peak_bytes` is the most that a rank's tensors took, where that can be known.
    """

    kind: Literal["iteration"] = "iteration"
    scenario: dict[str, Any]
    time: Timing
    peak_bytes: Size | None = None


class MemoryRecord(_Record):
    """What CUDA's allocator held beside tensors, and what of the card it never got."""

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
