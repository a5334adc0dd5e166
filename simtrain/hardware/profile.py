"""Schema of a hardware profile: a cluster's numbers, each with its source."""

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from simtrain.base.entry import Count, Entry, Fraction, NonNegative, Positive, Strict, Text
from simtrain.base.quantities import (
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    NonNegativeSeconds,
    NonNegativeWatts,
    PricePerHour,
    Watts,
)
from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms import Collectives
from simtrain.hardware.cluster import ROUNDING, Cluster, InterNode, IntraNode, most_fraction
from simtrain.hardware.entries import entries_of, entry_of
from simtrain.hardware.sections import (
    Dispatchers,
    DispatchKernels,
    MemoryBound,
    Reliability,
    VariationEntries,
)
from simtrain.units import format_bytes, format_decimal

GPU_POWERS = "gpu_idle_power", "gpu_waiting_power", "gpu_memory_power", "gpu_product_power"
"""What a GPU draws by what runs on it (`RunningCosts`), from the least to the most."""
SET_IN_SCENARIO = "set in the scenario"
"""The source of an entry that a scenario overrides."""
SCALE = "scale"
"""The section of `hardware` with a factor for each of some resources."""
_PEAK = "no product is faster than the peak of its data type"
_CACHED = "a faster measurement came from a cache"
_PINNED = (
    "write the bandwidth of copies between pinned host memory and the GPU, one way; PCIe 5.0 x16 "
    "has 64 GB/s"
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
    by_dtype: GemmByDtype = GemmByDtype.model_construct()


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
    PCIe switch or a CPU have their part of it, as its source says. `adam_bandwidth` is for Adam on
    all cores, which moves 28 bytes per parameter, `adam_thread_bandwidth` for one of its threads.
    `memory` is a node's; without it, copies' memory is not checked. `single_bandwidth` is for the
    copies of one GPU alone: with it, fewer GPUs share the bandwidth of all, up to this.
    """

    bandwidth: Entry[BytesPerSecond]
    adam_bandwidth: Entry[BytesPerSecond]
    adam_thread_bandwidth: Entry[BytesPerSecond] | None = None
    memory: Entry[Bytes] | None = None
    single_bandwidth: Entry[BytesPerSecond] | None = None


class RunningCosts(Strict):
    """Price and power, used for cost estimates only; each entry may be missing.

    `price` is that of a GPU-hour on demand. `gpu_power` is the power limit of one GPU board,
    `node_power` the maximum power of a whole node. A GPU draws `gpu_product_power` in matrix
    products and attention, `gpu_memory_power` in other kernels, `gpu_waiting_power` in collectives
    that no kernel hides, and `gpu_idle_power` while a process holds it and no kernel runs.
    `fan_power` is that of a node's fans at the highest heat, `host_power` everything else in a
    node. A switch of `switch_ports` ports draws `switch_power`, with its transceivers.
    """

    price: Entry[PricePerHour] | None = None
    gpu_power: Entry[Watts] | None = None
    node_power: Entry[Watts] | None = None
    gpu_product_power: Entry[Watts] | None = None
    gpu_memory_power: Entry[Watts] | None = None
    gpu_waiting_power: Entry[Watts] | None = None
    gpu_idle_power: Entry[Watts] | None = None
    host_power: Entry[Watts] | None = None
    fan_power: Entry[NonNegativeWatts] | None = None
    switch_power: Entry[NonNegativeWatts] | None = None
    switch_ports: Entry[Count] | None = None


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
        return self.gemm.by_dtype.mxfp8 is not None

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

    def num_switches(self, num_gpus: int, num_ports: int) -> float:
        """Return the switches of a network without a bottleneck that joins these GPUs.

        An NVLink domain needs none, and a few nodes one. Of more nodes each adapter has leaves of
        its own; a second tier has half as many switches, and a third one makes the second whole.
        """
        num_nodes, down = -(-num_gpus // self.cluster.gpus_per_node.value), num_ports // 2
        if num_gpus <= self.cluster.nvlink_gpus or self.inter_node is None:
            return 0
        num_adapters = self.inter_node.num_adapters.value
        if num_nodes * num_adapters <= down:
            return 1
        tiers = 2 if num_nodes * num_adapters <= 2 * down**2 else 3
        return num_adapters * math.ceil(num_nodes / down) * (tiers - 0.5)

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


# Entries of a profile that contradict each other.


class _Limit(NamedTuple):
    """Entries whose product is at most another entry; the first is more likely wrong."""

    names: tuple[str, ...]
    limit: str
    unit: str
    reason: str


def check_contradictions(profile: HardwareProfile) -> None:
    """Check that no two entries contradict each other.

    Raises:
        FieldError: at the entry that the scenario sets; if it sets none or all of them, at the
            entry that is more likely wrong.
    """
    if profile.lower_bound and profile.calibrated:
        message = "true contradicts calibrated: true, as fitted entries give times, not bounds"
        raise FieldError(("lower_bound",), message, "write lower_bound: false, or leave it out")
    _check_links(profile)
    for limit in _limits(profile):
        _check_limit(profile, limit)
    _check_collectives(profile)


def _limits(profile: HardwareProfile) -> Iterator[_Limit]:
    peaks = {"gemm": "gpu.peak_flops"} | {
        f"gemm.by_dtype.{dtype}": f"gemm.by_dtype.{dtype}.peak_flops"
        for dtype, gemm in profile.gemm.by_dtype
        if gemm
    }
    for section, peak in peaks.items():
        products = f"{section}.mainloop_flops", "gemm.in_situ_speed"
        yield _Limit(products, peak, "FLOP/s", _PEAK)
        yield _Limit((f"{section}.sustained_flops",), peak, "FLOP/s", _PEAK)
    less = ("memory.allocator_reserve",)
    yield _Limit(less, "gpu.memory_capacity", "B", "the rest of the memory is for tensors")
    costs = dict(profile.running_costs or ())
    if costs.get("gpu_power") and costs.get("node_power"):
        of_gpus = "running_costs.gpu_power", "cluster.gpus_per_node"
        reason = "the power of a node is that of the whole node, with its GPUs"
        yield _Limit(of_gpus, "running_costs.node_power", "W", reason)
    powers = [f"running_costs.{name}" for name in (*GPU_POWERS, "gpu_power") if costs.get(name)]
    for lower, higher in itertools.pairwise(powers):
        yield _Limit((lower,), higher, "W", "a GPU draws less the less of it works")
    links = {"host_link.bandwidth", "host_link.single_bandwidth"}
    kernels = {"gemm.operand_bandwidth"} | {
        name
        for name, _ in entries_of(profile.memory_bound, "memory_bound.")
        if name.endswith(("_bandwidth", ".forward", ".backward"))
    }
    rates = {name: entry.value for name, entry in entries_of(profile) if name in links | kernels}
    # The fastest first, so that the remedy for a low limit suits all of them.
    for name in sorted(rates, key=rates.__getitem__, reverse=True):
        reason = _PINNED if name in links else _CACHED
        yield _Limit((name,), "gpu.memory_bandwidth", "B/s", reason)


def _check_limit(profile: HardwareProfile, limit: _Limit) -> None:
    values = {name: entry_of(profile, name).value for name in limit.names}
    reached, most = math.prod(values.values()), entry_of(profile, limit.limit).value
    is_strict = limit.unit == "B"
    if reached < most or (reached == most and not is_strict):
        return

    def text(value: float) -> str:
        return format_bytes(value) if limit.unit == "B" else format_decimal(value, limit.unit)

    at_least, at_most = ("more than", "less than") if is_strict else ("at least", "at most")
    wrong = _to_blame(profile, (*limit.names, limit.limit))
    if wrong == limit.limit:
        message = f"{text(most)} is below {text(reached)}, which {limit.names[0]} reaches"
        fix = f"write {at_least} {text(reached)}, or lower {' or '.join(limit.names)} too"
    else:
        others = " and ".join(name for name in limit.names if name != wrong)
        what = f"multiplied by {others} it is {text(reached)}," if others else f"{text(reached)} is"
        message = f"{what} above {limit.limit} {text(most)}"
        allowed = values[wrong] * most / reached
        parts = 1 if isinstance(values[wrong], int) else 10_000
        factor = f"{math.floor(parts * allowed) / parts:g}"
        amount = text(allowed) if wrong == limit.names[0] else factor
        fix = f"write {at_most} {amount}; {limit.reason}"
    raise FieldError((*wrong.split("."), "value"), message, fix)


def _to_blame(profile: HardwareProfile, names: tuple[str, ...]) -> str:
    overridden = (name for name in names if entry_of(profile, name).source == SET_IN_SCENARIO)
    return next(overridden, names[0])


def _check_links(profile: HardwareProfile) -> None:
    cluster = profile.cluster
    joined = "gpus_per_nvlink_domain" if cluster.gpus_per_nvlink_domain else "gpus_per_node"
    beyond = cluster.num_nodes.value if cluster.num_gpus > cluster.nvlink_gpus else 1
    needed = (
        ("intra_node", profile.intra_node, joined, cluster.nvlink_gpus),
        ("inter_node", profile.inter_node, "num_nodes", beyond),
    )
    for section, links, field, count in needed:
        if links is None and count > 1:
            message = f"{count} need links, but the profile has no section {section}"
            fix = f"add the section {section} to the profile, or write 1"
            raise FieldError(("cluster", field, "value"), message, fix)


def _check_collectives(profile: HardwareProfile) -> None:
    """Check that no collective is faster than its link, and the entry of the switch."""
    if (links := profile.intra_node) is None:
        return
    measured, nvlink = links.all_reduce.value[-1].num_ranks, profile.cluster.nvlink_gpus
    switch = profile.collectives and profile.collectives.switch
    if switch and switch.efficiency and nvlink <= measured:
        raise FieldError(
            ("collectives", "switch", "efficiency", "value"),
            f"no node has more GPUs ({nvlink}) than the largest measured all_reduce ({measured} "
            "ranks), whose curve already includes NCCL's choice",
            "remove efficiency, or add cluster.gpus_per_nvlink_domain",
        )
    speed = links.in_situ_speed.value
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        if (curves := getattr(links, kind)) is None:
            continue
        # A curve above 1 shows that the switch performs the collective.
        best, most = max(
            (fraction, most_fraction(kind, curve.num_ranks) if fraction > 1 else 1.0)
            for curve in curves.value
            for fraction in [max(curve.efficiency)]
        )
        if best * speed <= most * (1 + ROUNDING):
            continue
        wrong = _to_blame(profile, ("intra_node.in_situ_speed", f"intra_node.{kind}"))
        if wrong == f"intra_node.{kind}":
            what = f"the efficiency {best:.4g} multiplied by intra_node.in_situ_speed {speed:.4g}"
            fix = f"write efficiencies of at most {most / speed:.4g}"
        else:
            what = f"multiplied by the efficiency {best:.4g} of {kind} it"
            fix = f"write at most {most / best:.4g}"
        raise FieldError((*wrong.split("."), "value"), f"{what} exceeds the link", fix)
