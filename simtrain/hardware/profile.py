"""Schema of a hardware profile: a cluster's numbers, each with its source."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from simtrain.base.entry import (
    Count,
    Entry,
    Fraction,
    NonNegative,
    Positive,
    Strict,
    Text,
)
from simtrain.hardware.algorithms import Collectives
from simtrain.hardware.cluster import Cluster, InterNode, IntraNode
from simtrain.hardware.contradictions import check_contradictions
from simtrain.hardware.sections import (
    Dispatchers,
    DispatchKernels,
    MemoryBound,
    Reliability,
    VariationEntries,
)
from simtrain.units import (
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    NonNegativeSeconds,
    NonNegativeWatts,
    PricePerHour,
    Watts,
)


class Gpu(Strict):
    """Datasheet of one GPU."""

    peak_flops: Entry[FlopsPerSecond]
    memory_capacity: Entry[Bytes]
    memory_bandwidth: Entry[BytesPerSecond]
    num_sms: Entry[Count]


class Tile(Strict):
    """A tile that one multiprocessor computes, and its speed relative to the fastest tile."""

    m: Count
    n: Count
    relative_speed: Fraction


class Ranges(Strict):
    """Smallest and largest fitted size of each axis."""

    @field_validator("*", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, (low, high) in self:
            if low > high:
                raise ValueError(f"{name} runs from {low} to {high}: write the smaller first")
        return self


class ShapeRange(Ranges):
    """Fitted sizes of matrix products."""

    m: tuple[Count, Count]
    n: tuple[Count, Count]
    k: tuple[Count, Count]


class AttentionRange(Ranges):
    """Fitted sizes of fused attention; `heads` counts all sequences of a microbatch."""

    heads: tuple[Count, Count]
    seq_length: tuple[Count, Count]
    head_size: tuple[Count, Count]


class LayoutSpeeds(Strict):
    """Relative speeds of products by the layout of their operands, as BLAS writes it.

    A training step has TN forward, NN for input gradients and NT for weight gradients.
    """

    TN: Positive
    NN: Positive
    NT: Positive


class DtypeGemm(Strict):
    """Speed of matrix products of another data type than bf16.

    Omitted entries are taken from 16-bit products. Without `valid_shapes` every shape is
    extrapolated.
    """

    peak_flops: Entry[FlopsPerSecond]
    mainloop_flops: Entry[FlopsPerSecond]
    sustained_flops: Entry[FlopsPerSecond]
    tail_quantization: Entry[Annotated[float, Field(ge=0, le=1)]] | None = None
    tile_overhead: Entry[NonNegativeSeconds] | None = None
    layouts: Entry[LayoutSpeeds] | None = None
    unaligned_speed: Entry[Fraction] | None = None
    valid_shapes: Entry[ShapeRange] | None = None


class GemmByDtype(Strict):
    """Matrix products of data types other than bf16 that the GPU supports.

    fp8: one scale per tensor.
    fp8_block: one scale per 1 x 128 or 128 x 128 block.
    mxfp8: one scale per 32 elements.
    nvfp4: 4-bit elements, one scale per 16 elements.
    tf32, fp32: 32-bit elements, with and without tensor cores.
    """

    fp8: DtypeGemm | None = None
    fp8_block: DtypeGemm | None = None
    mxfp8: DtypeGemm | None = None
    nvfp4: DtypeGemm | None = None
    tf32: DtypeGemm | None = None
    fp32: DtypeGemm | None = None


class GemmModel(Strict):
    """Parameters of the matrix-product model, tiles in waves (`durations.gemm`).

    Operands and results move at `operand_bandwidth`, by default the fused kernels' bandwidth. All
    layouts are equally fast unless `layouts` has their speeds, which batched products do not have.
    `unaligned_speed` is the speed of products whose rows in memory are no multiple of 16 bytes,
    relative to others; by default 1. Entries are for 16-bit products; `by_dtype` has the other data
    types.
    """

    mainloop_flops: Entry[FlopsPerSecond]
    in_situ_speed: Entry[Positive]
    sustained_flops: Entry[FlopsPerSecond]
    tail_quantization: Entry[Annotated[float, Field(ge=0, le=1)]]
    tile_overhead: Entry[NonNegativeSeconds]
    accumulate_overhead: Entry[NonNegativeSeconds]
    tiles: Entry[Annotated[list[Tile], Field(min_length=1)]]
    batched_fraction: Entry[Fraction]
    operand_bandwidth: Entry[BytesPerSecond] | None = None
    layouts: Entry[LayoutSpeeds] | None = None
    unaligned_speed: Entry[Fraction] | None = None
    valid_shapes: Entry[ShapeRange]
    valid_batched_shapes: Entry[ShapeRange]
    by_dtype: GemmByDtype = GemmByDtype()


class AttentionEfficiency(Strict):
    """Parameters of the fused-attention model (`durations.attention`).

    `*_efficiency` is the fraction of the peak that long sequences approach, with heads of 128
    channels. A sequence of `*_half_length` tokens with many heads reaches half of that. With
    `*_softmax_channels`, narrower heads are slower. `flash_attention_2` is the speed of that older
    kernel relative to this one; without it they are taken to be equally fast.
    """

    forward_efficiency: Entry[Fraction]
    forward_half_length: Entry[NonNegative]
    backward_efficiency: Entry[Fraction]
    backward_half_length: Entry[NonNegative]
    forward_softmax_channels: Entry[NonNegative] | None = None
    backward_softmax_channels: Entry[NonNegative] | None = None
    flash_attention_2: Entry[Positive] | None = None
    valid_shapes: Entry[AttentionRange]


class Memory(Strict):
    """GPU memory that a process uses in addition to its tensors.

    `allocator_reserve` is outside the allocator: driver, CUDA context, NCCL. `fragmentation` is the
    allocator's extra memory, as a fraction of the tensors, when memory is nearly full.

    `torch_workspace` and `linear_workspace` are sizes of workspaces of matrix products, which are
    tensors; the software stack says how many there are. PyTorch chooses the first by GPU, unless
    `CUBLAS_WORKSPACE_CONFIG` is set; Transformer Engine chooses the second. Without an entry, no
    workspace is counted.
    """

    allocator_reserve: Entry[Bytes]
    fragmentation: Entry[Annotated[float, Field(ge=0, lt=1)]]
    torch_workspace: Entry[Bytes] | None = None
    linear_workspace: Entry[Bytes] | None = None


class Host(Strict):
    """The CPU that launches kernels.

    `issue` is its time to launch a kernel from PyTorch. `speed` is how fast it runs a framework's
    Python code, relative to the host of a DGX H100 (Xeon Platinum 8480C); by default 1.
    """

    issue: Entry[NonNegativeSeconds]
    speed: Entry[Positive] | None = None


class HostLink(Strict):
    """The host's bandwidths, per GPU while all GPUs of a node use them, and its memory.

    `bandwidth` is for copies between the GPU and pinned host memory, one way: GPUs that share a
    PCIe switch or a CPU have their part of it, as its source says. `adam_bandwidth` is for the
    host's Adam, which reads and writes 28 bytes per parameter. `memory` is that of a node; without
    it, the memory that copies need is not checked. `single_bandwidth` is that of copies while no
    other GPU of the node uses its link. With it, n GPUs of a node that use their links share the
    node's bandwidths, and none has more than this; without it, they have no more than all do.
    """

    bandwidth: Entry[BytesPerSecond]
    adam_bandwidth: Entry[BytesPerSecond]
    memory: Entry[Bytes] | None = None
    single_bandwidth: Entry[BytesPerSecond] | None = None


class RunningCosts(Strict):
    """Price and power, used for cost estimates only; each entry may be missing.

    `price` is that of a GPU-hour on demand. `gpu_power` is the maximum power of one GPU board,
    `node_power` that of a whole node. What a GPU draws while it computes, waits for
    communication, and has nothing to do is `gpu_busy_power`, `gpu_waiting_power` and
    `gpu_idle_power`; `fan_power` is that of a node's fans, `host_power` everything else in a node,
    `network_power` a node's share of the switches.
    """

    price: Entry[PricePerHour] | None = None
    gpu_power: Entry[Watts] | None = None
    node_power: Entry[Watts] | None = None
    gpu_busy_power: Entry[Watts] | None = None
    gpu_waiting_power: Entry[Watts] | None = None
    gpu_idle_power: Entry[Watts] | None = None
    host_power: Entry[Watts] | None = None
    fan_power: Entry[NonNegativeWatts] | None = None
    network_power: Entry[Watts] | None = None


class Interference(Strict):
    """Interference between a kernel and a concurrent collective inside a node.

    Both run at 1/(1 + slowdown) of their speed. A slowdown of 1 is as if they took turns.
    """

    slowdown: Entry[Annotated[float, Field(ge=0, le=1)]]


class HardwareProfile(Strict):
    """A hardware profile: all numbers of a cluster.

    Offloading needs `host_link`, and fused attention needs `fused_attention`.
    `intra_node` is required with several GPUs per node, `inter_node` with
    several nodes. `uncertainty` is the relative error that nine of ten times stay below, as the
    profile's own fit has it.

    Args:
        name: name of the machine.
        description: what the machine is, and where its numbers come from.
        calibrated: whether entries are fitted to measurements.
        lower_bound: whether every entry without a published number has its best possible value, so
            that predicted times are lower bounds.
    """

    version: Literal[1]
    name: Text
    description: Text
    calibrated: bool
    lower_bound: bool = False
    cluster: Cluster
    gpu: Gpu
    gemm: GemmModel
    fused_attention: AttentionEfficiency | None = None
    memory: Memory
    memory_bound: MemoryBound
    host: Host
    host_link: HostLink | None = None
    overlap: Interference
    intra_node: IntraNode | None = None
    inter_node: InterNode | None = None
    collectives: Collectives | None = None
    dispatchers: Dispatchers | None = None
    running_costs: RunningCosts | None = None
    reliability: Reliability | None = None
    variation: VariationEntries | None = None
    uncertainty: Entry[Positive] | None = None
    _host_speed: float = PrivateAttr(default=1.0)

    def __repr__(self) -> str:
        nodes, gpus = self.cluster.num_nodes.value, self.cluster.gpus_per_node.value
        return f"<HardwareProfile {self.name}: {nodes:,} nodes of {gpus} GPUs>"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_contradictions(self)
        return self

    @property
    def host_speed(self) -> float:
        """Speed of the host relative to the one of this profile, which software stacks assume."""
        return self._host_speed

    @property
    def call_speed(self) -> float:
        """Speed at which the host makes the calls of a framework, relative to a DGX H100's."""
        return self._host_speed * (self.host.speed.value if self.host.speed else 1.0)

    def with_faster_host(self, factor: float) -> Self:
        """Return the profile with `factor` times the speed at which the host runs other's code."""
        faster = self.model_copy()
        faster._host_speed = self._host_speed * factor
        return faster

    def product_rates(self, dtype: str) -> GemmModel | DtypeGemm | None:
        """Speed of matrix products of a data type; None if the profile has no entry."""
        if dtype == "bf16":
            return self.gemm
        rates: DtypeGemm | None = getattr(self.gemm.by_dtype, dtype)
        return rates

    @property
    def product_types(self) -> tuple[str, ...]:
        return ("bf16", *(name for name, rates in self.gemm.by_dtype if rates))

    @property
    def reads_fp8_both_ways(self) -> bool:
        """Whether fp8 products with one scale per tensor read operands along either dimension.

        Transformer Engine's `is_non_tn_fp8_gemm_supported`: GPUs of compute capability 10, which is
        also the first that multiplies mxfp8.
        """
        return "mxfp8" in self.product_types

    def peak_flops(self, dtype: str) -> float | None:
        if dtype == "bf16":
            return self.gpu.peak_flops.value
        rates = self.product_rates(dtype)
        return rates.peak_flops.value if isinstance(rates, DtypeGemm) else None

    @property
    def dispatcher_names(self) -> tuple[str, ...]:
        return tuple(name for name, entry in self.dispatchers or () if entry is not None)

    def dispatch_kernels(self, name: str) -> DispatchKernels:
        """Entry of a dispatcher; call only for one that a scenario is checked against."""
        entry: DispatchKernels | None = getattr(self.dispatchers, name, None)
        assert entry is not None, "a scenario is checked against its profile before"
        return entry

    @property
    def adapter_share_bytes_per_s(self) -> float:
        """One GPU's share of its node's network bandwidth, one way."""
        network = self.network
        adapters = network.num_adapters.value * network.adapter_bandwidth.value
        return adapters / self.cluster.gpus_per_node.value

    @property
    def links(self) -> IntraNode:
        """Links inside a node; call only for ranks that share a node."""
        assert self.intra_node is not None, "a node of one GPU has no links inside it"
        return self.intra_node

    @property
    def network(self) -> InterNode:
        """Network between nodes; call only for ranks on several nodes."""
        assert self.inter_node is not None, "a cluster of one node has no network"
        return self.inter_node
