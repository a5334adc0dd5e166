"""Schema of a file of published measurements."""

from statistics import median
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from simtrain.base.entry import Count, Entry, Fraction, Positive, Strict, Text
from simtrain.base.quantities import BytesPerSecond, FlopsPerSecond, NonNegativeSeconds
from simtrain.base.strict_yaml import FieldError
from simtrain.durations.model import REFERENCE_HEAD_SIZE
from simtrain.hardware.algorithms import Collectives as Algorithms
from simtrain.hardware.cluster import Cluster, InterNode, PointToPoint
from simtrain.hardware.profile import Gpu, HostLink, Memory, RunningCosts
from simtrain.hardware.sections import Dispatchers, Reliability, VariationEntries
from simtrain.workload.work import RING_COLLECTIVES, CollectiveKind

Columns = TypeVar("Columns")
Row = Annotated[Columns, Field(strict=False)]
"""A list in the file, read as a tuple."""
Points = TypeVar("Points")
Product = Row[tuple[Count, Count, Count, Positive]]
"""m, n, k and TFLOP/s."""
PairedProduct = Row[tuple[Count, Count, Count, Positive, Positive]]
"""m, n, k, TFLOP/s, and TFLOP/s of the 16-bit product in the same run."""
Dtype = Literal["fp8", "fp8_block", "mxfp8", "nvfp4", "tf32", "fp32"]
Layout = Literal["TN", "NN", "NT"]
Way = Literal["forward", "backward"]
KernelName = Literal[
    "softmax",
    "dropout",
    "layer_norm",
    "rms_norm",
    "swiglu",
    "rotary",
    "cross_entropy",
    "cast",
    "chunk_scan",
]
LayoutProduct = Row[tuple[Count, Count, Count, Layout, Positive]]
SmallKernelTime = Row[tuple[Count, Positive]]
"""Bytes that a kernel moves, and microseconds."""
KernelTime = Row[tuple[Text, Count, Positive]]
"""Kernel, bytes that it moves, and microseconds."""
BatchedTime = Row[tuple[Count, Count, Count, Count, Count, Positive]]
"""Batch, m, n, k, number of batched products, and microseconds for all of them."""
CollectiveTime = Row[tuple[Count, Positive]]
"""Bytes of the whole array, and microseconds."""
AttentionTime = Row[tuple[Count, Count, Count, Positive]]
"""Heads of all sequences, tokens, channels per head, and microseconds forward."""
AttentionRates = Row[tuple[Count, Count, Count, Positive, Positive]]
"""The same sizes, and TFLOP/s forward and backward, counting FLOPs without the causal mask."""
AttentionRate = Row[tuple[Count, Count, Count, Positive]]
"""The same sizes, and TFLOP/s counting only unmasked FLOPs, forward or backward."""
TrainingRate = Row[tuple[Count, Count, Literal[128], Positive]]
"""As `AttentionRate`, with 128 channels per head (`REFERENCE_HEAD_SIZE`)."""
HeadSizeRates = Row[tuple[Count, Positive, Positive, Positive, Positive]]
"""Tokens, and TFLOP/s of narrow and wide heads forward, then backward."""
LayerTime = Row[tuple[Text, Positive, Positive]]
"""Strategy, milliseconds forward, and milliseconds backward with recompute."""


class Sourced(Strict, Generic[Points]):
    """Measured points, and the paper or table that published them."""

    source: Text
    points: Points


TrainingRates = Sourced[Annotated[list[TrainingRate], Field(min_length=4)]]


class IntraNodeSheet(Strict):
    """The links inside a node."""

    bandwidth: Entry[BytesPerSecond]
    point_to_point: PointToPoint


class CopiedEntries(Strict):
    """Numbers that the profile copies, each with its source."""

    cluster: Cluster
    gpu: Gpu
    memory: Memory
    stream_bandwidth: Entry[BytesPerSecond]
    gemm_unaligned_speed: Entry[Fraction] | None = None
    host_issue: Entry[NonNegativeSeconds]
    host_speed: Entry[Positive] | None = None
    host_link: HostLink
    intra_node: IntraNodeSheet
    inter_node: InterNode
    collectives: Algorithms | None = None
    dispatchers: Dispatchers | None = None
    running_costs: RunningCosts
    reliability: Reliability | None = None
    variation: VariationEntries | None = None


class WeightGradients(Strict):
    """Weight gradients into fp32 and forward products of one library; only ratios are used."""

    source: Text
    forward: Annotated[list[Product], Field(min_length=4)]
    points: Annotated[list[Product], Field(min_length=4)]


class DtypeProducts(Strict):
    """Measured products in another data type.

    Without points, the fit scales 16-bit rates by the ratio of the peaks.

    Measured times include `num_casts` kernels before the product, which read and write `cast_bytes`
    per element of the first operand. Products of at least `sustained_from` FLOPs run long enough
    for power to limit the clock; `power_limit` replaces their median if another publication has
    products that run for longer. Elements have `element_bytes`. Without `weight_gradients` all
    layouts are equally fast.
    """

    peak_flops: Entry[FlopsPerSecond]
    source: str = ""
    element_bytes: Positive = 1
    num_casts: Count = 1
    cast_bytes: Count = 1
    sustained_from: Positive = 6e11
    power_limit: Entry[FlopsPerSecond] | None = None
    points: list[PairedProduct] = Field(default_factory=list)
    weight_gradients: WeightGradients | None = None


class KernelTimes(Sourced[Annotated[list[KernelTime], Field(min_length=4)]]):
    """Measured memory-bound kernels, and the memory bandwidth of the card.

    `names` lists the points of each kernel with a bandwidth of its own (`memory_bound.kernels`).
    """

    memory_bandwidth: Entry[BytesPerSecond]
    names: dict[KernelName, dict[Way, Text]] = Field(default_factory=dict)

    def ways(self) -> list[tuple[KernelName, Way, list[KernelTime]]]:
        return [
            (kernel, way, [point for point in self.points if point[0] == name])
            for kernel, names in self.names.items()
            for way, name in names.items()
        ]

    @model_validator(mode="after")
    def _measured(self) -> Self:
        for kernel, way, points in self.ways():
            if not points:
                raise FieldError(
                    ("names", kernel, way),
                    f'no point has the name "{self.names[kernel][way]}"',
                    f"write one of {', '.join(dict.fromkeys(point[0] for point in self.points))}",
                )
        return self


class BatchedGemms(Sourced[Annotated[list[BatchedTime], Field(min_length=6)]]):
    """Measured batched products, and the memory bandwidth of the card."""

    memory_bandwidth: Entry[BytesPerSecond]


class CollectiveCurveFigures(Strict):
    """One collective over one group size."""

    num_ranks: Annotated[int, Field(ge=2)]
    times: Annotated[list[CollectiveTime], Field(min_length=4)]


class CollectiveFigures(Strict):
    """Measured collectives inside a node."""

    source: Text
    all_reduce: Annotated[list[CollectiveCurveFigures], Field(min_length=1)]
    all_gather: Annotated[list[CollectiveCurveFigures], Field(min_length=1)]
    reduce_scatter: Annotated[list[CollectiveCurveFigures], Field(min_length=1)]
    all_to_all: Annotated[list[CollectiveCurveFigures], Field(min_length=1)] | None = None

    @property
    def curves(self) -> dict[CollectiveKind, list[CollectiveCurveFigures]]:
        kinds = (*RING_COLLECTIVES, CollectiveKind.ALL_TO_ALL)
        return {kind: figures for kind in kinds if (figures := getattr(self, kind.value))}


class LayerFigures(Strict):
    """Measured times of one layer; `scenario` names the shipped scenario of each strategy."""

    source: Text
    scenario: Text
    times: Annotated[list[LayerTime], Field(min_length=3)]


class FusedAttentionFigures(Sourced[Annotated[list[AttentionTime], Field(min_length=9)]]):
    """Causal fused attention, forward over many shapes.

    Of `both_ways` only the ratio of backward to forward is used.
    """

    both_ways: Sourced[Annotated[list[AttentionRates], Field(min_length=3)]]


class HeadSizes(Sourced[Annotated[list[HeadSizeRates], Field(min_length=3)]]):
    """Fused attention with `narrow` and with 128 channels per head; only the ratio is used."""

    narrow: Annotated[int, Field(ge=1, lt=REFERENCE_HEAD_SIZE)]

    def pairs(self, way: str) -> list[tuple[int, float, float]]:
        first = 1 if way == "forward" else 3
        return [(point[0], point[first], point[first + 1]) for point in self.points]

    @model_validator(mode="after")
    def _explained(self) -> Self:
        """Check that rates fall less than channels do: exponentials do not depend on channels."""
        least = self.narrow / REFERENCE_HEAD_SIZE
        for way in ("forward", "backward"):
            ratio = median(narrow / wide for _, narrow, wide in self.pairs(way))
            if ratio <= least:
                raise FieldError(
                    ("points",),
                    f"{way} the rate of narrow heads is {ratio:.3g} of the wide ones' in median, "
                    f"but must be above {least:.3g}: a head of {self.narrow} channels never "
                    f"takes longer than one of {REFERENCE_HEAD_SIZE}",
                    "correct the rates, or write the channels of the narrow heads as narrow",
                )
        return self


class OtherAttention(Strict):
    """Fused attention measured by others, compared with the fit."""

    source: Text
    forward: Annotated[list[AttentionRate], Field(min_length=1)]
    backward: list[AttentionRate] = Field(default_factory=list)


class OlderKernel(Strict):
    """TFLOP/s of an older kernel and of the newest one at equal shapes, forward and backward."""

    source: Text
    points: Annotated[list[Row[tuple[Count, Positive, Positive]]], Field(min_length=4)]


class TrainingAttentionFigures(Strict):
    """Fused attention forward and backward by sequence length, with 128 channels per head.

    `flash_attention_2` has tokens, TFLOP/s of FlashAttention-2, and TFLOP/s of the newest kernel.
    """

    forward: TrainingRates
    backward: TrainingRates
    head_sizes: HeadSizes
    flash_attention_2: OlderKernel | None = None
    elsewhere: OtherAttention

    def common_ranges(self) -> dict[str, tuple[int, int]]:
        """Return the ranges of heads and tokens that forward and backward points have in common."""
        ways = self.forward.points, self.backward.points
        sizes = {
            "heads": [[heads for heads, *_ in points] for points in ways],
            "seq_length": [[tokens for _, tokens, *_ in points] for points in ways],
        }
        return {name: (max(map(min, both)), min(map(max, both))) for name, both in sizes.items()}

    @model_validator(mode="after")
    def _overlapping(self) -> Self:
        for name, (low, high) in self.common_ranges().items():
            if low > high:
                raise FieldError(
                    ("backward", "points"),
                    f"the forward and the backward points have no {name} in common",
                    "write points with common shapes forward and backward",
                )
        return self


class FiguresOfParts(Strict):
    """Measurements that every file has: products, kernels and collectives, each alone.

    `small_kernels` is one kernel down to sizes that show its latency. `gemm_sustained` are products
    that run long enough for power to limit the clock; `gemm_power_limit` replaces their median if
    another publication has products that run for longer. `gemm_elsewhere` are products measured by
    others, and `all_reduce_elsewhere` an all-reduce of the largest group: both are only compared
    with the fit, which shows how far such figures lie apart.
    """

    version: Literal[1]
    name: Text
    description: Text
    datasheet: CopiedEntries
    gemm: Sourced[Annotated[list[Product], Field(min_length=20)]]
    gemm_batched: BatchedGemms
    gemm_by_dtype: dict[Dtype, DtypeProducts] = Field(default_factory=dict)
    kernels: KernelTimes
    further_kernels: list[KernelTimes] = Field(default_factory=list)
    small_kernels: Sourced[Annotated[list[SmallKernelTime], Field(min_length=4)]]
    gemm_sustained: Sourced[Annotated[list[Product], Field(min_length=5)]]
    gemm_power_limit: Entry[FlopsPerSecond] | None = None
    gemm_elsewhere: Sourced[Annotated[list[Product], Field(min_length=1)]]
    collectives: CollectiveFigures
    all_reduce_elsewhere: Sourced[Annotated[list[CollectiveTime], Field(min_length=3)]]


LayoutProducts = Sourced[Annotated[list[LayoutProduct], Field(min_length=12)]]
"""Products in the layouts of training, those of weight gradients (NT) added into fp32."""


class Figures(FiguresOfParts):
    """Measurements of a machine with published layers, and products in the layouts of training."""

    gemm_layouts: LayoutProducts
    layer: LayerFigures
    fused_attention: FusedAttentionFigures | None = None


class TakenOver(Strict):
    """Numbers that need measurements of layouts and whole layers, taken from other machines."""

    accumulate_overhead: Entry[NonNegativeSeconds] | None = None
    batched_fraction: Entry[Fraction]
    gemm_in_situ_speed: Entry[Positive]
    collective_in_situ_speed: Entry[Positive]
    slowdown: Entry[Annotated[float, Field(ge=0, le=1)]]


class FiguresWithoutLayers(FiguresOfParts):
    """Measurements of a machine without published layers.

    `gemm_layouts` or `taken_over` says how long an accumulation into fp32 takes.
    """

    taken_over: TakenOver
    gemm_layouts: LayoutProducts | None = None
    fused_attention: TrainingAttentionFigures | None = None

    @model_validator(mode="after")
    def _accumulating(self) -> Self:
        is_measured, overhead = self.gemm_layouts is not None, self.taken_over.accumulate_overhead
        if is_measured == (overhead is not None):
            raise FieldError(
                ("taken_over",),
                f"there are {'both' if is_measured else 'neither'} gemm_layouts "
                f"{'and' if is_measured else 'nor'} accumulate_overhead: one of them says how "
                "long an accumulation into fp32 takes",
                "write gemm_layouts if products in all layouts were measured on this machine, "
                "else accumulate_overhead",
            )
        return self
