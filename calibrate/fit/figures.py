"""The file of measured and published figures that a profile is fitted from."""

from __future__ import annotations

from statistics import median
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simtrain.durations.attention import REFERENCE_HEAD_SIZE
from simtrain.entry import Entry
from simtrain.hardware.algorithms import Collectives as Algorithms
from simtrain.hardware.cluster import Cluster
from simtrain.hardware.links import PointToPoint
from simtrain.hardware.profile import Gpu, HostLink, Memory, RunningCosts
from simtrain.strict_yaml import FieldError
from simtrain.units import BytesPerSecond, FlopsPerSecond, NonNegativeSeconds
from simtrain.workload.work import RING_COLLECTIVES, CollectiveKind


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Size = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Product = Annotated[tuple[Size, Size, Size, Positive], BeforeValidator(_tuple)]
"""m, n, k and TFLOP/s."""
PairedProduct = Annotated[tuple[Size, Size, Size, Positive, Positive], BeforeValidator(_tuple)]
"""m, n, k, TFLOP/s, and TFLOP/s of the 16-bit product of the same run."""
Dtype = Literal["fp8", "fp8_block", "mxfp8", "tf32", "fp32"]
Layout = Literal["TN", "NN", "NT"]
KernelName = Literal[
    "softmax",
    "dropout",
    "layer_norm",
    "rms_norm",
    "swiglu",
    "rotary",
    "cross_entropy",
    "cast",
]
LayoutProduct = Annotated[tuple[Size, Size, Size, Layout, Positive], BeforeValidator(_tuple)]
SmallKernelTime = Annotated[tuple[Size, Positive], BeforeValidator(_tuple)]
"""Bytes that a kernel moves, microseconds."""
KernelTime = Annotated[tuple[Text, Size, Positive], BeforeValidator(_tuple)]
"""Kernel, bytes that it moves, microseconds."""
BatchedTime = Annotated[tuple[Size, Size, Size, Size, Size, Positive], BeforeValidator(_tuple)]
"""Batch, m, n, k, number of such products, and microseconds for all of them."""
CollectiveTime = Annotated[tuple[Size, Positive], BeforeValidator(_tuple)]
"""Bytes of the whole array and microseconds."""
AttentionTime = Annotated[tuple[Size, Size, Size, Positive], BeforeValidator(_tuple)]
"""Heads of all sequences, tokens, channels of a head, and microseconds forward."""
AttentionRates = Annotated[tuple[Size, Size, Size, Positive, Positive], BeforeValidator(_tuple)]
"""The same sizes, and TFLOP/s forward and backward, as if the mask left nothing out."""
AttentionRate = Annotated[tuple[Size, Size, Size, Positive], BeforeValidator(_tuple)]
"""The same sizes, and TFLOP/s of what the causal mask leaves, one way."""
TrainingRate = Annotated[tuple[Size, Size, Literal[128], Positive], BeforeValidator(_tuple)]
"""The same of heads of 128 channels (`REFERENCE_HEAD_SIZE`)."""
HeadSizeRates = Annotated[
    tuple[Size, Positive, Positive, Positive, Positive], BeforeValidator(_tuple)
]
"""Tokens, and TFLOP/s of narrow and of wide heads forward, of narrow and of wide heads backward."""
LayerTime = Annotated[tuple[Text, Positive, Positive], BeforeValidator(_tuple)]
"""Strategy, milliseconds forward, milliseconds backward with recompute."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class IntraNodeSheet(_Strict):
    """The links inside a node."""

    bandwidth: Entry[BytesPerSecond]
    point_to_point: PointToPoint


class InterNodeSheet(_Strict):
    """The network between nodes."""

    num_adapters: Entry[Size]
    adapter_bandwidth: Entry[BytesPerSecond]
    whole_node_efficiency: Entry[Annotated[float, Field(gt=0, le=1)]]
    concurrent_efficiency: Entry[Annotated[float, Field(gt=0, le=1)]]
    step_latency: Entry[NonNegativeSeconds]
    point_to_point: PointToPoint


class Datasheet(_Strict):
    """What is taken over as it is, each number with its source."""

    cluster: Cluster
    gpu: Gpu
    memory: Memory
    stream_bandwidth: Entry[BytesPerSecond]
    host_issue: Entry[NonNegativeSeconds]
    host_link: HostLink
    intra_node: IntraNodeSheet
    inter_node: InterNodeSheet
    collectives: Algorithms | None = None
    running_costs: RunningCosts


class Gemms(_Strict):
    """Measured matrix products."""

    source: Text
    points: Annotated[list[Product], Field(min_length=20)]


class DtypeProducts(_Strict):
    """Measured products of a further data type; without points they follow from the peak.

    A time has `num_casts` kernels before the product, which read and write `cast_bytes` for each
    element of the first operand. Products of `sustained_from` FLOPs run long enough for power to
    limit the clock.
    """

    peak_flops: Entry[FlopsPerSecond]
    source: str = ""
    num_casts: Annotated[int, Field(ge=1)] = 1
    cast_bytes: Annotated[int, Field(ge=1)] = 1
    sustained_from: Positive = 6e11
    points: list[PairedProduct] = []


class SustainedGemms(_Strict):
    """Products that run long enough for power to limit the clock."""

    source: Text
    points: Annotated[list[Product], Field(min_length=5)]


class RandomDataGemms(_Strict):
    """Products on random data, shown beside the fit."""

    source: Text
    points: Annotated[list[Product], Field(min_length=1)]


class LayoutGemms(_Strict):
    """Measured products of the three layouts of training."""

    source: Text
    points: Annotated[list[LayoutProduct], Field(min_length=12)]


class KernelWays(_Strict):
    """What the points of one kernel are called, forward and backward."""

    forward: Text | None = None
    backward: Text | None = None


class Kernels(_Strict):
    """Measured memory-bound kernels, on a card with this memory bandwidth.

    `names` says which points are those of a kernel that a profile has a bandwidth of
    (`memory_bound.kernels`).
    """

    source: Text
    memory_bandwidth: Entry[BytesPerSecond]
    names: dict[KernelName, KernelWays] = {}
    points: Annotated[list[KernelTime], Field(min_length=4)]

    def ways(self) -> list[tuple[KernelName, str, list[KernelTime]]]:
        """Of each kernel with a bandwidth of its own, one way after the other: its points."""
        return [
            (kernel, way, [point for point in self.points if point[0] == name])
            for kernel, names in self.names.items()
            for way, name in names
            if name
        ]

    @model_validator(mode="after")
    def _measured(self) -> Self:
        for kernel, way, points in self.ways():
            if not points:
                name = getattr(self.names[kernel], way)
                raise FieldError(
                    ("names", kernel, way),
                    f'no point is called "{name}"',
                    f"write one of {', '.join(dict.fromkeys(point[0] for point in self.points))}",
                )
        return self


class SmallKernels(_Strict):
    """One memory-bound kernel over sizes down to where its latency shows."""

    source: Text
    points: Annotated[list[SmallKernelTime], Field(min_length=4)]


class BatchedGemms(_Strict):
    """Measured batched products, on a card with this memory bandwidth."""

    source: Text
    memory_bandwidth: Entry[BytesPerSecond]
    points: Annotated[list[BatchedTime], Field(min_length=6)]


class CollectiveCurveFigures(_Strict):
    """One collective over one group size."""

    num_ranks: Annotated[int, Field(ge=2)]
    times: Annotated[list[CollectiveTime], Field(min_length=4)]


class Collectives(_Strict):
    """Measured collectives inside a node."""

    source: Text
    all_reduce: Annotated[list[CollectiveCurveFigures], Field(min_length=1)]
    all_gather: Annotated[list[CollectiveCurveFigures], Field(min_length=1)]
    reduce_scatter: Annotated[list[CollectiveCurveFigures], Field(min_length=1)]
    all_to_all: Annotated[list[CollectiveCurveFigures], Field(min_length=1)] | None = None

    @property
    def kinds(self) -> tuple[CollectiveKind, ...]:
        """The kinds that were measured."""
        return RING_COLLECTIVES + ((CollectiveKind.ALL_TO_ALL,) if self.all_to_all else ())

    def of(self, kind: CollectiveKind) -> list[CollectiveCurveFigures]:
        """The curves of one kind of collective."""
        return {
            CollectiveKind.ALL_REDUCE: self.all_reduce,
            CollectiveKind.ALL_GATHER: self.all_gather,
            CollectiveKind.REDUCE_SCATTER: self.reduce_scatter,
            CollectiveKind.ALL_TO_ALL: self.all_to_all or [],
        }[kind]


class OtherTimes(_Strict):
    """The largest group's all-reduce, measured by others."""

    source: Text
    points: Annotated[list[CollectiveTime], Field(min_length=3)]


class LayerFigures(_Strict):
    """Measured times of one layer; `scenario` names the shipped scenario of each strategy."""

    source: Text
    scenario: Text
    times: Annotated[list[LayerTime], Field(min_length=3)]


class AttentionBothWays(_Strict):
    """Fused attention timed forward and backward; only their ratio is used."""

    source: Text
    points: Annotated[list[AttentionRates], Field(min_length=3)]


class FusedAttentionFigures(_Strict):
    """Causal fused attention, forward over many shapes, and both ways."""

    source: Text
    points: Annotated[list[AttentionTime], Field(min_length=9)]
    both_ways: AttentionBothWays


class AttentionKernels(_Strict):
    """Causal fused attention one way, of heads of 128 channels."""

    source: Text
    points: Annotated[list[TrainingRate], Field(min_length=4)]


class HeadSizes(_Strict):
    """Fused attention of heads of `narrow` and of 128 channels; only their ratio is used."""

    source: Text
    narrow: Annotated[int, Field(ge=1, lt=REFERENCE_HEAD_SIZE)]
    points: Annotated[list[HeadSizeRates], Field(min_length=3)]

    def pairs(self, way: str) -> list[tuple[int, float, float]]:
        """Tokens, and the rates of narrow and of wide heads, forward or backward."""
        first = 1 if way == "forward" else 3
        return [(point[0], point[first], point[first + 1]) for point in self.points]

    @model_validator(mode="after")
    def _explained(self) -> Self:
        """Heads that only lack channels lose less than channels: exponentials do not shrink."""
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


class OtherAttention(_Strict):
    """Fused attention as others measured it: held against the fit."""

    source: Text
    forward: Annotated[list[AttentionRate], Field(min_length=1)]
    backward: list[AttentionRate] = []


class TrainingAttentionFigures(_Strict):
    """Fused attention timed as it trains: both ways, each over lengths."""

    forward: AttentionKernels
    backward: AttentionKernels
    head_sizes: HeadSizes
    elsewhere: OtherAttention

    def seen_both_ways(self) -> dict[str, tuple[int, int]]:
        """The heads and tokens that lie in the range of the points of both ways."""
        ways = self.forward.points, self.backward.points
        sizes = {
            "heads": [[heads for heads, *_ in points] for points in ways],
            "seq_length": [[tokens for _, tokens, *_ in points] for points in ways],
        }
        return {name: (max(map(min, both)), min(map(max, both))) for name, both in sizes.items()}

    @model_validator(mode="after")
    def _overlapping(self) -> Self:
        for name, (low, high) in self.seen_both_ways().items():
            if low > high:
                raise FieldError(
                    ("backward", "points"),
                    f"no {name} lies in the range of both the forward and the backward points",
                    "give points of common shapes both ways",
                )
        return self


class FiguresOfParts(_Strict):
    """What every fit reads: products, kernels and collectives, each by itself."""

    version: Literal[1]
    name: Text
    description: Text
    datasheet: Datasheet
    gemm: Gemms
    gemm_batched: BatchedGemms
    gemm_by_dtype: dict[Dtype, DtypeProducts] = {}
    kernels: Kernels
    further_kernels: list[Kernels] = []
    small_kernels: SmallKernels
    gemm_sustained: SustainedGemms
    collectives: Collectives


class Figures(FiguresOfParts):
    """Everything that a fit with whole layers reads."""

    gemm_layouts: LayoutGemms
    gemm_random_data: RandomDataGemms
    all_reduce_elsewhere: OtherTimes
    layer: LayerFigures
    fused_attention: FusedAttentionFigures | None = None


class TakenOver(_Strict):
    """What only layouts and whole layers show, where nobody published any: said, not fitted."""

    accumulate_overhead: Entry[NonNegativeSeconds]
    batched_fraction: Entry[Annotated[float, Field(gt=0, le=1)]]
    gemm_in_situ_speed: Entry[Positive]
    collective_in_situ_speed: Entry[Positive]
    slowdown: Entry[Annotated[float, Field(ge=0, le=1)]]


class FiguresWithoutLayers(FiguresOfParts):
    """Figures of a machine on which nobody published whole layers."""

    all_reduce_elsewhere: OtherTimes
    gemm_elsewhere: RandomDataGemms
    taken_over: TakenOver
    fused_attention: TrainingAttentionFigures | None = None
