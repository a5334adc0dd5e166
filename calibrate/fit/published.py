"""Fit a profile to published measurements.

Matrix products, kernels, collectives and fused attention are fitted separately. Some numbers need
measurements of whole layers. Without published layers they come from the file's section
`taken_over`, each with its source.
"""

import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from calibrate.fit.attention import published_attention, training_attention
from calibrate.fit.base import (
    Data,
    entry,
    micro,
    minimise,
    published,
    round_significant,
    shape_range,
    tera,
)
from calibrate.fit.differences import fit_differences
from calibrate.fit.figures import (
    DtypeProducts,
    Figures,
    FiguresWithoutLayers,
    FusedAttentionFigures,
    LayoutProducts,
    WeightGradients,
)
from calibrate.fit.kernels import PublishedKernels
from calibrate.fit.layers import InSitu, fit_layers
from calibrate.fit.links import fit_curves, other_times
from calibrate.fit.products import (
    BlasGemm,
    batch_times,
    dtype_section,
    gemm_section,
    rates,
    tflops,
    tiled_machine,
    with_loop,
)
from calibrate.fit.result import Fit, profile_of
from simtrain.base.accuracy import ErrorTable
from simtrain.base.strict_yaml import load_document, validate
from simtrain.durations.model import GemmMachine, gemm_seconds
from simtrain.hardware.profile import HardwareProfile, Host, LayoutSpeeds
from simtrain.scenario import load_scenario
from simtrain.units import parse_bytes_per_s
from simtrain.workload.work import FP32_BYTES, CollectiveKind

_START_TFLOPS = 270.0
"""Start of the search for the A100's main-loop rate."""
_START_OVERHEAD_US = 5.0
"""Start of the search for the accumulation's time per tile."""
_DTYPE_START = 0.7, 1.0, 2.0
"""Start of the search for a data type: tail quantization, us per tile, TB/s of a cast."""
_TAKEN_OVER = "taken_over"
_OPTIONAL = (
    *("inter_node", "running_costs", "reliability", "variation", "collectives", "dispatchers"),
)
_ROUNDING_MS = 0.1 / math.sqrt(12)
"""Standard deviation of a number printed to 0.1 ms."""
_START_SLOWDOWN = 0.3
"""Where the search for the slowdown of overlap starts."""


class PublishedProducts:
    """Model of 16-bit products, and its errors.

    Shapes and the sustained rate are fitted first, then fp32 accumulation and batches. Without
    published layers, the last two come from the section `taken_over`. Products move their bytes at
    `memory_fraction` of the memory bandwidth.
    """

    def __init__(self, figures: Figures | FiguresWithoutLayers, memory_fraction: float) -> None:
        gpu, shaped = figures.datasheet.gpu, _rated(figures.gemm.points)
        memory, num_sms = memory_fraction * gpu.memory_bandwidth.value, gpu.num_sms.value
        has_layouts, self.layouts = isinstance(figures, Figures), list[ErrorTable]()
        start_tflops = _START_TFLOPS if has_layouts else max(rate for _, rate in shaped)
        start = (start_tflops, 0.7, 4.0, 0.8, 0.8, 0.8, 0.8)
        machine = minimise(lambda x: tiled_machine(x, num_sms, memory), start, shaped, tflops)
        sustained = median(rate for *_, rate in figures.gemm_sustained.points) * 1e12
        machine = machine.replace(sustained_flops=round_significant(sustained))
        if figures.gemm_layouts:
            machine, layouts = _fit_accumulation(figures.gemm_layouts, machine)
            self.layouts.append(layouts)
        if isinstance(figures, Figures):
            fractions = [step / 200 for step in range(20, 201)]
        else:
            fractions = [figures.taken_over.batched_fraction.value]
            if overhead := figures.taken_over.accumulate_overhead:
                machine = machine.replace(accumulate_overhead_s=overhead.value)
        batches = [
            (BlasGemm(m, n, k, batch=batch), count, time_us)
            for batch, m, n, k, count, time_us in figures.gemm_batched.points
        ]
        batched_memory = memory_fraction * figures.gemm_batched.memory_bandwidth.value

        def batched(fraction: float) -> ErrorTable:
            card = machine.replace(memory_bytes_per_s=batched_memory, batched_fraction=fraction)
            title = "batched products" if has_layouts else "batched products (not fitted)"
            return batch_times(title, card, batches)

        fraction = min(fractions, key=lambda each: batched(each).mean_log_ratio)
        self.batched = batched(fraction)
        self.machine = machine = machine.replace(batched_fraction=fraction)
        self.shapes = rates("matrix products by shape", machine, shaped)
        self.sustained, self.others = (
            rates(title, machine, _rated(products.points))
            for title, products in (
                ("sustained matrix products", figures.gemm_sustained),
                ("matrix products measured elsewhere (not fitted)", figures.gemm_elsewhere),
            )
        )
        if figures.gemm_power_limit:
            # None of the products above runs for long enough to reach it.
            self.machine = machine.replace(sustained_flops=figures.gemm_power_limit.value)
        self.valid_shapes = _range_entry([op for op, _ in shaped], figures.gemm.source)
        self.valid_batches = _range_entry([op for op, *_ in batches], figures.gemm_batched.source)

    @property
    def comparisons(self) -> list[ErrorTable]:
        return [self.sustained, self.shapes, *self.layouts, self.batched, self.others]

    @property
    def speed_elsewhere(self) -> float:
        return median(row.measured / row.predicted for row in self.others.rows)


def _fit_accumulation(
    figures: LayoutProducts, shapes: GemmMachine
) -> tuple[GemmMachine, ErrorTable]:
    """The longer epilogue of an fp32 accumulation; the speed is that of the layouts' machine."""
    # The weight gradient's (NT) accumulates into fp32.
    into_fp32: Data = {"output_element_bytes": FP32_BYTES, "accumulate": True}
    products = [
        (BlasGemm(m, n, k, layout=layout, **(into_fp32 if layout == "NT" else {})), rate)
        for m, n, k, layout, rate in figures.points
    ]
    fitted = minimise(
        lambda x: shapes.replace(mainloop_flops=x[0] * 1e12, accumulate_overhead_s=x[1] * 1e-6),
        (median(rate for _, rate in products), _START_OVERHEAD_US),
        products,
        tflops,
    )
    overhead_s = round_significant(fitted.accumulate_overhead_s)
    comparison = rates("matrix products by layout", fitted, products)
    return shapes.replace(accumulate_overhead_s=overhead_s), comparison


def _rated(points: Sequence[tuple[int, int, int, float]]) -> list[tuple[BlasGemm, float]]:
    return [(BlasGemm(m, n, k), rate) for m, n, k, rate in points]


def _range_entry(ops: Sequence[BlasGemm], source: str) -> Data:
    return entry(shape_range(ops), f"the range of the points of {source}")


# Published fp8 times are of a layer's call, which casts its input before the product. Therefore the
# fit has a product and its casts together; the profile does not use the fitted bandwidth of casts.
# Power limits the clock differently in each run. Each point has the 16-bit product of the same run,
# and rates are scaled to the clock at which that product is as fast as in the profile. Tiles are
# those of 16-bit products.


@dataclass(frozen=True, slots=True)
class _CastingMachine:
    """Model of products, and the time of casting the first operand before the product."""

    products: GemmMachine
    latency_s: float
    seconds_per_element: float

    def casts_s(self, op: BlasGemm) -> float:
        return self.latency_s + self.seconds_per_element * op.m * op.k


def fit_dtypes(
    figures: Figures | FiguresWithoutLayers, latency_s: float, machine: GemmMachine
) -> tuple[Data, list[ErrorTable]]:
    """Fit each data type of `gemm_by_dtype`; return the entries and their errors.

    `latency_s` is the time of a small kernel, `machine` that of 16-bit products.
    """
    by_dtype: Data = {}
    all_comparisons: list[ErrorTable] = []
    for dtype, products in figures.gemm_by_dtype.items():
        if products.points:
            by_dtype[dtype], fitted, *comparisons = _fit_dtype(dtype, products, latency_s, machine)
            all_comparisons += comparisons
            if gradients := products.weight_gradients:
                layouts, comparison = fit_weight_gradients(dtype, gradients, fitted)
                by_dtype[dtype]["layouts"] = layouts
                all_comparisons.append(comparison)
        else:
            ratio = products.peak_flops.value / figures.datasheet.gpu.peak_flops.value
            source = "scaled from 16-bit products by the ratio of the peaks: no published products"
            sustained, limit = ratio * machine.sustained_flops, products.power_limit
            by_dtype[dtype] = {
                "peak_flops": _peak(products),
                "mainloop_flops": entry(tera(ratio * machine.mainloop_flops, "FLOP/s"), source),
                "sustained_flops": entry(
                    tera(limit.value if limit else sustained, "FLOP/s"),
                    limit.source if limit else source,
                ),
            }
    return by_dtype, all_comparisons


def _peak(figures: DtypeProducts) -> Data:
    return entry(tera(figures.peak_flops.value, "FLOP/s"), figures.peak_flops.source)


def _fit_dtype(
    dtype: str, figures: DtypeProducts, latency_s: float, machine: GemmMachine
) -> tuple[Data, GemmMachine, ErrorTable, ErrorTable]:
    """The entries of a data type, its machine, and the errors of all products and the longest."""
    points, source = figures.points, figures.source
    size = figures.element_bytes
    products = [(BlasGemm(m, n, k, element_bytes=size), rate) for m, n, k, rate, _ in points]
    power_limited = machine.replace(sustained_flops=figures.peak_flops.value)

    def candidate(x: Sequence[float]) -> _CastingMachine:
        *loop, cast_tera = x
        seconds_per_element = figures.cast_bytes / (cast_tera * 1e12)
        loop_machine = with_loop(power_limited, loop, math.inf)
        return _CastingMachine(loop_machine, figures.num_casts * latency_s, seconds_per_element)

    start = max(rate for _, rate in products), *_DTYPE_START
    fit = minimise(candidate, start, products, _cast_tflops)
    rows = ((op.name, rate, _cast_tflops(op, fit)) for op, rate in products)
    shapes = ErrorTable.of(f"{dtype} products with their casts", "TFLOP/s", rows)
    long = [
        (op, op.flops / (op.flops / (rate * 1e12) - fit.casts_s(op)) / 1e12)
        for op, rate in products
        if op.flops >= figures.sustained_from
    ]
    sustained = median(rate for _, rate in long) * 1e12
    limited = fit.products.replace(sustained_flops=sustained)
    longest = rates(f"sustained {dtype} products", limited, long)
    clock = median(tflops(BlasGemm(m, n, k), machine) / rate for m, n, k, _, rate in points)
    slower = (
        f"times {clock:.3f}, the ratio of this profile's 16-bit products to those of the same run"
    )
    limit = published(
        f"median of {source}, products of {figures.sustained_from:.0e} FLOPs and more "
        f"without their casts; {slower}",
        longest,
    )
    if figures.power_limit:
        limit = functools.partial(entry, source=figures.power_limit.source)
    clocked = fit.products.replace(
        mainloop_flops=clock * fit.products.mainloop_flops,
        sustained_flops=figures.power_limit.value if figures.power_limit else clock * sustained,
        tail_quantization=round(fit.products.tail_quantization, 4),
    )
    loop, unscaled = published(f"{source}; {slower}", shapes), published(source, shapes)
    valid_shapes = _range_entry([op for op, _ in products], source)
    section = dtype_section(clocked, _peak(figures), loop, limit, unscaled, valid_shapes)
    return section, clocked, shapes, longest


def fit_weight_gradients(
    dtype: str, figures: WeightGradients, machine: GemmMachine
) -> tuple[Data, ErrorTable]:
    """The speed of weight gradients relative to forward products, whose rates set the clock."""
    forward = [(BlasGemm(m, n, k, element_bytes=1), rate) for m, n, k, rate in figures.forward]
    clock = median(tflops(op, machine) / rate for op, rate in forward)
    gradients = [
        (
            BlasGemm(m, n, k, 1, 1, FP32_BYTES, accumulate=True, layout="NT"),
            clock * rate,
        )
        for m, n, k, rate in figures.points
    ]
    speed = median(rate / tflops(op, machine) for op, rate in gradients)
    layouts = LayoutSpeeds(TN=1.0, NN=1.0, NT=round_significant(speed))
    title = f"weight gradients of {dtype} products, at the clock of its forward products"
    comparison = rates(title, machine.replace(layouts=layouts), gradients)
    source = f"median of {figures.source}, relative to forward products of the same library"
    return published(source, comparison)(layouts.model_dump()), comparison


def _cast_tflops(op: BlasGemm, machine: _CastingMachine) -> float:
    return op.flops / (machine.casts_s(op) + gemm_seconds(op, machine.products)) / 1e12


def fit_figures(path: pathlib.Path) -> Fit:
    """Fit the measurements in a file.

    Raises:
        InputError: the file cannot be read, or its values are too few or outside their ranges.
    """
    document = load_document(path)
    if "base" in document.data:
        return fit_differences(document)
    has_layers = _TAKEN_OVER not in document.data
    schema: type[Figures | FiguresWithoutLayers] = Figures if has_layers else FiguresWithoutLayers
    figures = validate(schema, document.data, document.positions)
    sheet, taken_over = document.data["datasheet"], document.data.get(_TAKEN_OVER, {})
    kernels = PublishedKernels(figures, sheet["stream_bandwidth"])
    products = PublishedProducts(figures, kernels.fraction)
    by_dtype, of_dtypes = fit_dtypes(figures, kernels.latency_s, products.machine)
    bandwidth, timed = figures.datasheet.intra_node.bandwidth.value, figures.collectives
    curves = {kind: fit_curves(curve, kind, bandwidth) for kind, curve in timed.curves.items()}
    largest = curves[CollectiveKind.ALL_REDUCE][0][-1]
    elsewhere = other_times(figures.all_reduce_elsewhere.points, largest, bandwidth)
    data: Data = {
        "version": 1,
        "name": figures.name,
        "description": figures.description,
        "calibrated": True,
        **{name: sheet[name] for name in ("cluster", "gpu", "memory")},
        "gemm": _gemm(figures, products, sheet, taken_over),
        "memory_bound": kernels.section,
        "host": {
            name: sheet[f"host_{name}"] for name in Host.model_fields if f"host_{name}" in sheet
        },
        "host_link": sheet["host_link"],
        "overlap": {},
        "intra_node": sheet["intra_node"]
        | {
            kind.value: published(timed.source, points)(each)
            for kind, (each, points) in curves.items()
        },
        **{name: sheet[name] for name in _OPTIONAL if name in sheet},
    }
    shown = [*kernels.comparisons, *products.comparisons, *of_dtypes]
    shown += [*(comparison for _, comparison in curves.values()), elsewhere]
    if isinstance(figures, Figures):
        estimates = (
            (products.speed_elsewhere, products.shapes.mean_abs_error),
            (1.0, kernels.comparisons[0].mean_abs_error),
            (1.0, elsewhere.mean_abs_error),
        )
        in_situ = _fit_in_situ(figures, data, estimates)
        data = _with_layers(data, figures, in_situ)
        shown.append(in_situ.comparison)
    else:
        data = _with_sections(
            data,
            gemm={"in_situ_speed": taken_over["gemm_in_situ_speed"]},
            overlap={"slowdown": taken_over["slowdown"]},
            intra_node={"in_situ_speed": taken_over["collective_in_situ_speed"]},
        )
    if by_dtype:
        data = _with_sections(data, gemm={"by_dtype": by_dtype})
    section, of_attention = _attention(figures, profile_of(data))
    return Fit(data | section, [*shown, *of_attention])


def _fit_in_situ(figures: Figures, data: Data, estimates: Sequence[tuple[float, float]]) -> InSitu:
    scenario = figures.layer.scenario
    layers = [
        (name, load_scenario(scenario.format(strategy=name)), both, (_ROUNDING_MS,) * 2)
        for name, *both in figures.layer.times
    ]
    return fit_layers(
        "layers",
        layers,
        lambda guess: profile_of(_with_layers(data, figures, guess)),
        estimates,
        (*(value for value, _ in estimates), _START_SLOWDOWN),
        (0.0, math.inf),
    )


def _attention(
    figures: Figures | FiguresWithoutLayers, profile: HardwareProfile
) -> tuple[Data, Sequence[ErrorTable]]:
    attention = figures.fused_attention
    if attention is None:
        return {}, ()
    section, comparisons = (
        published_attention(attention, profile)
        if isinstance(attention, FusedAttentionFigures)
        else training_attention(attention, profile)
    )
    return {"fused_attention": section}, comparisons


def _gemm(
    figures: Figures | FiguresWithoutLayers,
    fit: PublishedProducts,
    sheet: Mapping[str, Data],
    taken_over: Mapping[str, Data],
) -> Data:
    machine = fit.machine
    if figures.gemm_layouts:
        by_layout = published(figures.gemm_layouts.source, fit.layouts[0])
        overhead = by_layout(micro(machine.accumulate_overhead_s))
    else:
        overhead = taken_over["accumulate_overhead"]
    if isinstance(figures, Figures):
        batched = published(figures.gemm_batched.source, fit.batched)
        fraction = batched(machine.batched_fraction)
    else:
        fraction = taken_over["batched_fraction"]
    shapes = published(figures.gemm.source, fit.shapes)
    sustained = published(f"median of {figures.gemm_sustained.source}", fit.sustained)
    if figures.gemm_power_limit:
        sustained = functools.partial(entry, source=figures.gemm_power_limit.source)
    section = gemm_section(machine, shapes, sustained, overhead, fraction)
    if unaligned := sheet.get("gemm_unaligned_speed"):
        section["unaligned_speed"] = unaligned
    return section | {"valid_shapes": fit.valid_shapes, "valid_batched_shapes": fit.valid_batches}


def _with_layers(data: Data, figures: Figures, layers: InSitu) -> Data:
    layer = figures.layer.source
    fused = data["memory_bound"]["fused_bandwidth"]
    alone = parse_bytes_per_s(fused["value"])

    def fitted(value: object, *others: str) -> Data:
        return published(", with ".join((layer, *others)), layers.comparison)(value)

    bandwidth = fitted(tera(layers.kernels * alone, "B/s"), fused["source"])
    bandwidth["fitted_on"] += f"; kernels alone: {fused['fitted_on']}"
    elsewhere = figures.gemm_elsewhere.source, figures.all_reduce_elsewhere.source
    return _with_sections(
        data,
        gemm={"in_situ_speed": fitted(layers.products, elsewhere[0])},
        memory_bound={"fused_bandwidth": bandwidth},
        intra_node={"in_situ_speed": fitted(layers.collectives, elsewhere[1])},
        overlap={"slowdown": fitted(layers.slowdown)},
    )


def _with_sections(data: Data, **sections: Data) -> Data:
    return data | {name: data[name] | section for name, section in sections.items()}
