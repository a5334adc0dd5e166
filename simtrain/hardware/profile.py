"""A hardware profile: one machine's numbers, each with the source that it was read from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from simtrain.entry import (
    Count,
    Entry,
    Fraction,
    NonNegative,
    Positive,
    Strict,
    Text,
)
from simtrain.hardware.algorithms import Collectives
from simtrain.hardware.cluster import Cluster
from simtrain.hardware.kernels import MemoryBound
from simtrain.hardware.links import InterNode, IntraNode
from simtrain.strict_yaml import FieldError
from simtrain.units import (
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    NonNegativeSeconds,
    PricePerHour,
    Watts,
)


class Gpu(Strict):
    """One accelerator's datasheet."""

    peak_flops: Entry[FlopsPerSecond]
    memory_capacity: Entry[Bytes]
    memory_bandwidth: Entry[BytesPerSecond]
    num_sms: Entry[Count]


class Tile(Strict):
    """A block of the result that one multiprocessor computes, and its speed against the best."""

    m: Count
    n: Count
    relative_speed: Fraction


class Ranges(Strict):
    """The smallest and the largest size that a fit has seen, of each of its axes."""

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
    """The sizes of matrix products."""

    m: tuple[Count, Count]
    n: tuple[Count, Count]
    k: tuple[Count, Count]


class AttentionRange(Ranges):
    """The sizes of fused attention; `heads` are those of all sequences of a microbatch."""

    heads: tuple[Count, Count]
    seq_length: tuple[Count, Count]
    head_size: tuple[Count, Count]


class DtypeGemm(Strict):
    """How fast products of a further data type are.

    What is left out is as of 16-bit products. Without `valid_shapes` all shapes are extrapolated.
    """

    peak_flops: Entry[FlopsPerSecond]
    mainloop_flops: Entry[FlopsPerSecond]
    sustained_flops: Entry[FlopsPerSecond]
    tail_quantization: Entry[Annotated[float, Field(ge=0, le=1)]] | None = None
    tile_overhead: Entry[NonNegativeSeconds] | None = None
    valid_shapes: Entry[ShapeRange] | None = None


class GemmByDtype(Strict):
    """Products of further data types, of those that the GPU multiplies.

    fp8: numbers with one scale a tensor.
    fp8_block: with one scale for each 1 x 128 or 128 x 128 block.
    mxfp8: with one scale for each 32 numbers.
    tf32, fp32: 32-bit numbers, on tensor cores and beside them.
    """

    fp8: DtypeGemm | None = None
    fp8_block: DtypeGemm | None = None
    mxfp8: DtypeGemm | None = None
    tf32: DtypeGemm | None = None
    fp32: DtypeGemm | None = None


class GemmModel(Strict):
    """How long a matrix product takes: tiles in waves over the multiprocessors (`costs.gemm`).

    Operands and results move at `operand_bandwidth`, or else at that of fused kernels. Products are
    of 16-bit numbers; `by_dtype` has those of other data types.
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
    valid_shapes: Entry[ShapeRange]
    valid_batched_shapes: Entry[ShapeRange]
    by_dtype: GemmByDtype = GemmByDtype()


class FusedAttention(Strict):
    """How fast fused attention is, as fractions of the peak that long sequences come near to.

    Where a sequence has as many tokens as the half length and heads are many, it reaches half of
    them. Efficiencies are those of heads of 128 channels; with `softmax_channels` narrower heads
    are slower (`durations.attention`).
    """

    forward_efficiency: Entry[Fraction]
    forward_half_length: Entry[NonNegative]
    backward_efficiency: Entry[Fraction]
    backward_half_length: Entry[NonNegative]
    forward_softmax_channels: Entry[NonNegative] | None = None
    backward_softmax_channels: Entry[NonNegative] | None = None
    valid_shapes: Entry[AttentionRange]


class Memory(Strict):
    """What a process holds of a GPU's memory beside its tensors.

    `allocator_reserve` is never an allocator's to give: the driver, CUDA, NCCL. `fragmentation` is
    what the allocator holds beside tensors, as a fraction of these, where memory is short.
    """

    allocator_reserve: Entry[Bytes]
    fragmentation: Entry[Annotated[float, Field(ge=0, lt=1)]]


class Host(Strict):
    """The processor that launches kernels."""

    issue: Entry[NonNegativeSeconds]


class HostLink(Strict):
    """What an offloaded optimizer has of its host; each GPU's share while all of a node use it.

    `bandwidth` is that of copies between GPU and pinned host memory, one way. `adam_bandwidth` is
    how fast the host's Adam moves the 28 bytes that it reads and writes of each parameter.
    """

    bandwidth: Entry[BytesPerSecond]
    adam_bandwidth: Entry[BytesPerSecond]


class RunningCosts(Strict):
    """What an hour takes; no time depends on it, and each entry may be missing.

    `price` is a GPU's an hour. `gpu_power` is the most that a GPU's board draws, `node_power` the
    most that a node draws with everything in it.
    """

    price: Entry[PricePerHour] | None = None
    gpu_power: Entry[Watts] | None = None
    node_power: Entry[Watts] | None = None


class Overlap(Strict):
    """What running beside each other costs a kernel and a collective over the links of a node.

    Side by side both run at 1/(1 + slowdown) of their speeds: the collective takes this share of
    the device, and never more than all of it, as if the two took turns.
    """

    slowdown: Entry[Annotated[float, Field(ge=0, le=1)]]


NOT_CALIBRATED = "The profile is not calibrated: its numbers are a datasheet's."
"""What is said beside every time that such a profile gave."""


class HardwareProfile(Strict):
    """Everything that simtrain knows of a cluster.

    Without `host_link` nothing can be offloaded, without `fused_attention` no attention is fused.

    One GPU a node has no `intra_node`, and one node no `inter_node`: `cluster` says who needs them.
    """

    version: Literal[1]
    name: Text
    description: Text
    calibrated: bool
    cluster: Cluster
    gpu: Gpu
    gemm: GemmModel
    fused_attention: FusedAttention | None = None
    memory: Memory
    memory_bound: MemoryBound
    host: Host
    host_link: HostLink | None = None
    overlap: Overlap
    intra_node: IntraNode | None = None
    inter_node: InterNode | None = None
    collectives: Collectives | None = None
    running_costs: RunningCosts | None = None

    def __repr__(self) -> str:
        nodes, gpus = self.cluster.num_nodes.value, self.cluster.gpus_per_node.value
        return f"<HardwareProfile {self.name}: {nodes:,} nodes of {gpus} GPUs>"

    @model_validator(mode="after")
    def _linked(self) -> Self:
        """Whoever the cluster puts beside each other has links."""
        cluster = self.cluster
        joined = "gpus_per_nvlink_domain" if cluster.gpus_per_nvlink_domain else "gpus_per_node"
        beyond = cluster.num_nodes.value if cluster.num_gpus > cluster.nvlink_gpus else 1
        needed = (
            ("intra_node", self.intra_node, joined, cluster.nvlink_gpus),
            ("inter_node", self.inter_node, "num_nodes", beyond),
        )
        for section, links, field, count in needed:
            if links is None and count > 1:
                raise FieldError(
                    ("cluster", field, "value"),
                    f"{count} need links, but there is no {section}: give it, or write 1",
                )
        return self

    @model_validator(mode="after")
    def _physical(self) -> Self:
        self._check_products(self.gemm, ("gemm",), self.gpu.peak_flops.value, "gpu.peak_flops")
        for dtype, rates in self.gemm.by_dtype:
            if rates:
                where = ("gemm", "by_dtype", dtype)
                self._check_products(rates, where, rates.peak_flops.value, "its peak_flops")
        reserve, capacity = self.memory.allocator_reserve.value, self.gpu.memory_capacity.value
        if reserve >= capacity:
            raise FieldError(
                ("memory", "allocator_reserve", "value"),
                f"{reserve} bytes leave nothing of gpu.memory_capacity {capacity}",
                f"write less than {capacity / 2**30:.4g} GiB",
            )
        self._check_links()
        self._check_power()
        memory = self.gpu.memory_bandwidth.value
        cached = f"write at most {memory / 1e9:.5g} GB/s; what ran faster ran from a cache"
        pinned = "write what copies between pinned host memory and the GPU reach, one way; "
        moving: tuple[tuple[object, tuple[str, ...], str], ...] = (
            (self.host_link, ("host_link", "bandwidth"), f"{pinned}PCIe 5.0 x16 has 64 GB/s"),
            (self.memory_bound, ("memory_bound", "fused_bandwidth"), cached),
            (self.memory_bound, ("memory_bound", "stream_bandwidth"), cached),
            (self.gemm, ("gemm", "operand_bandwidth"), cached),
            *(
                (kernel, ("memory_bound", "kernels", name, way), cached)
                for name, kernel in self.memory_bound.kernels
                for way in ("forward", "backward")
            ),
        )
        for found, path, fix in moving:
            entry: Entry[float] | None = getattr(found, path[-1], None)
            if entry and entry.value > memory:
                message = f"{entry.value:.4g} bytes/s is above gpu.memory_bandwidth {memory:.4g}"
                raise FieldError((*path, "value"), message, fix)
        return self

    def _check_products(
        self, rates: GemmModel | DtypeGemm, where: tuple[str, ...], peak: float, peak_name: str
    ) -> None:
        """No product is faster than the peak of its data type."""
        reached = rates.mainloop_flops.value * self.gemm.in_situ_speed.value
        if reached > peak:
            raise FieldError(
                (*where, "mainloop_flops", "value"),
                f"times gemm.in_situ_speed it is {reached:.4g} FLOP/s, above {peak_name} "
                f"{peak:.4g}",
                "no product is faster than the peak: lower this or gemm.in_situ_speed, or correct "
                "the peak of this data type",
            )
        sustained = rates.sustained_flops.value
        if sustained > peak:
            raise FieldError(
                (*where, "sustained_flops", "value"),
                f"{sustained:.4g} FLOP/s is above {peak_name} {peak:.4g}",
                f"write at most {peak / 1e12:.4g} TFLOP/s, or correct the peak of this data type",
            )

    def _check_links(self) -> None:
        """No collective is faster than its link, and a switch's efficiency is of some use."""
        if (links := self.intra_node) is None:
            return
        switch = self.collectives and self.collectives.switch
        measured, nvlink = links.all_reduce.value[-1].num_ranks, self.cluster.nvlink_gpus
        if switch and switch.efficiency and nvlink <= measured:
            raise FieldError(
                ("collectives", "switch", "efficiency", "value"),
                f"no node has more GPUs ({nvlink}) than the largest measured all_reduce "
                f"({measured} ranks), which already has what the library chose",
                "leave efficiency out, or give cluster.gpus_per_nvlink_domain",
            )
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            if (curves := getattr(links, kind)) is None:
                continue
            best = max(max(curve.efficiency) for curve in curves.value)
            if best * links.in_situ_speed.value > 1:
                raise FieldError(
                    ("intra_node", "in_situ_speed", "value"),
                    f"times the efficiency {best:.4g} of {kind} it is more than the whole link",
                    f"write at most {1 / best:.4g}",
                )

    def _check_power(self) -> None:
        """A node draws what its GPUs draw, and more."""
        if (costs := self.running_costs) is None:
            return
        gpu, node = costs.gpu_power, costs.node_power
        gpus_w = self.cluster.gpus_per_node.value * gpu.value if gpu else 0.0
        if node and node.value < gpus_w:
            raise FieldError(
                ("running_costs", "node_power", "value"),
                f"{node.value:.4g} W is less than the {gpus_w:.4g} W that its GPUs draw",
                f"write the power of the whole node, at least {gpus_w / 1e3:.4g} kW",
            )

    @property
    def calibration(self) -> str:
        """Whether it is calibrated, in words."""
        return "calibrated" if self.calibrated else "not calibrated"

    def product_rates(self, dtype: str) -> GemmModel | DtypeGemm | None:
        """How fast products of a data type are; None if the profile does not say."""
        if dtype == "bf16":
            return self.gemm
        found: DtypeGemm | None = getattr(self.gemm.by_dtype, dtype)
        return found

    @property
    def product_types(self) -> tuple[str, ...]:
        """The data types whose products it knows."""
        return ("bf16", *(name for name, rates in self.gemm.by_dtype if rates))

    def peak_flops(self, dtype: str) -> float | None:
        """The peak of a data type's products, in FLOP/s; None if the profile does not say."""
        if dtype == "bf16":
            return self.gpu.peak_flops.value
        rates = self.product_rates(dtype)
        return rates.peak_flops.value if isinstance(rates, DtypeGemm) else None

    @property
    def adapter_share_bytes_per_s(self) -> float:
        """One GPU's share of its node's network adapters, one way."""
        network = self.network
        adapters = network.num_adapters.value * network.adapter_bandwidth.value
        return adapters / self.cluster.gpus_per_node.value

    @property
    def links(self) -> IntraNode:
        """The links inside a node, which only ranks that share one may ask for."""
        assert self.intra_node is not None, "a node of one GPU has no ranks beside each other"
        return self.intra_node

    @property
    def network(self) -> InterNode:
        """The network between nodes, which only ranks of several nodes may ask for."""
        assert self.inter_node is not None, "a cluster of one node has no ranks on another"
        return self.inter_node
