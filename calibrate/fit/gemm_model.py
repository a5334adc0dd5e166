"""Fits the model of matrix products (`simtrain.durations.gemm`) to measured ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from scipy.optimize import minimize

from calibrate.fit.figures import (
    BatchedTime,
    Figures,
    FiguresOfParts,
    FiguresWithoutLayers,
    LayoutProduct,
    Product,
)
from calibrate.fit.residuals import Residual, Residuals, round_significant
from simtrain.durations.gemm import GemmMachine, gemm_seconds
from simtrain.hardware.profile import Tile
from simtrain.workload.work import FP32_BYTES, Gemm

TILES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64))
"""Tiles that libraries have, the first of which the others' speeds are relative to."""
Machine = TypeVar("Machine")
_START_TFLOPS = 270.0
"""Where the search for the A100's fit starts."""


@dataclass(frozen=True, slots=True)
class BlasGemm(Gemm):
    """A product and the layout of its operands as BLAS writes it, such as TN; "" if not given."""

    layout: str = ""


@dataclass(frozen=True, slots=True)
class GemmFit:
    """The fitted machine, and how well it explains each set of products."""

    machine: GemmMachine
    shapes: Residuals
    layouts: Residuals
    batched: Residuals
    sustained: Residuals
    random_data: Residuals

    @property
    def random_data_speed(self) -> float:
        """Measured over fitted speed on random data, which draws more power: the median."""
        return median(row.measured / row.fitted for row in self.random_data.rows)


@dataclass(frozen=True, slots=True)
class ShapeFit:
    """What is fitted without layers: shapes and what power sustains; batches beside it."""

    machine: GemmMachine
    shapes: Residuals
    batched: Residuals
    sustained: Residuals


def fit_gemm(figures: Figures, memory_fraction: float) -> GemmFit:
    """Fit shapes, then what power sustains, what fp32 accumulation adds, and batches.

    `memory_fraction` of the memory bandwidth is what a product's bytes can move at.

    The mean |log(fitted / measured)| is minimised: one odd product does not bend the model.
    """
    machine = _fit_shapes(figures, memory_fraction, _START_TFLOPS)
    machine, layouts = _fit_accumulation(figures, machine)
    machine, batched = _fit_batched(figures, memory_fraction, machine)
    return GemmFit(
        machine,
        gemm_residuals("matrix products by shape", machine, figures.gemm.points),
        layouts,
        batched,
        gemm_residuals("sustained matrix products", machine, figures.gemm_sustained.points),
        gemm_residuals(
            "matrix products on random data (not fitted)", machine, figures.gemm_random_data.points
        ),
    )


def fit_gemm_without_layers(figures: FiguresWithoutLayers, memory_fraction: float) -> ShapeFit:
    """Shapes, and what power sustains; the search starts at the speed of the fastest product."""
    fastest = max(point[3] for point in figures.gemm.points)
    machine = _fit_shapes(figures, memory_fraction, fastest).replace(
        batched_fraction=figures.taken_over.batched_fraction.value
    )
    card = _batched_card(figures, memory_fraction, machine)
    return ShapeFit(
        machine,
        gemm_residuals("matrix products by shape", machine, figures.gemm.points),
        _batched_residuals("batched products (not fitted)", figures, card),
        gemm_residuals("sustained matrix products", machine, figures.gemm_sustained.points),
    )


def _fit_shapes(
    figures: FiguresOfParts, memory_fraction: float, start_tflops: float
) -> GemmMachine:
    points = figures.gemm.points
    start = (start_tflops, 0.7, 4.0, 0.8, 0.8, 0.8, 0.8)
    memory = memory_fraction * figures.datasheet.gpu.memory_bandwidth.value
    num_sms = figures.datasheet.gpu.num_sms.value
    machine = minimise(
        lambda x: tiled_machine(x, num_sms, memory), start, [(_op(p), p[3]) for p in points], tflops
    )
    sustained = median(point[3] for point in figures.gemm_sustained.points) * 1e12
    return machine.replace(sustained_flops=round_significant(sustained))


def _fit_accumulation(figures: Figures, shapes: GemmMachine) -> tuple[GemmMachine, Residuals]:
    """Speed of the layouts' machine and the longer epilogue of an fp32 accumulation."""
    points = figures.gemm_layouts.points
    ops = [(_layout_op(p), p[4]) for p in points]

    def machine(x: Sequence[float]) -> GemmMachine:
        return shapes.replace(mainloop_flops=x[0] * 1e12, accumulate_overhead_s=x[1] * 1e-6)

    fitted = minimise(machine, (245.0, 5.0), ops, tflops)
    overhead_s = round_significant(fitted.accumulate_overhead_s)
    rows = [Residual(name_of(op), rate, tflops(op, fitted)) for op, rate in ops]
    return (
        shapes.replace(accumulate_overhead_s=overhead_s),
        Residuals("matrix products by layout", "TFLOP/s", rows),
    )


def _fit_batched(
    figures: FiguresOfParts, memory_fraction: float, machine: GemmMachine
) -> tuple[GemmMachine, Residuals]:
    """The fraction of speed that batched products reach: the best of steps of 0.005."""
    card = _batched_card(figures, memory_fraction, machine)

    def error(fraction: float) -> float:
        candidate = card.replace(batched_fraction=fraction)
        points = figures.gemm_batched.points
        return sum(abs(math.log(_batched_us(p, candidate) / p[5])) for p in points)

    fraction = min((step / 200 for step in range(20, 201)), key=error)
    fitted = card.replace(batched_fraction=fraction)
    residuals = _batched_residuals("batched products", figures, fitted)
    return machine.replace(batched_fraction=fraction), residuals


def _batched_card(
    figures: FiguresOfParts, memory_fraction: float, machine: GemmMachine
) -> GemmMachine:
    """The machine with the memory of the card that batches were measured on."""
    memory = memory_fraction * figures.gemm_batched.memory_bandwidth.value
    return machine.replace(memory_bytes_per_s=memory)


def _batched_residuals(title: str, figures: FiguresOfParts, card: GemmMachine) -> Residuals:
    rows = [
        Residual(f"{p[0]} of {name_of(_batched_op(p))}", p[5], _batched_us(p, card))
        for p in figures.gemm_batched.points
    ]
    return Residuals(title, "us", rows)


def minimise(
    machine: Callable[[Sequence[float]], Machine],
    start: Sequence[float],
    ops: Sequence[tuple[BlasGemm, float]],
    rate_of: Callable[[BlasGemm, Machine], float],
) -> Machine:
    """The machine of the positive numbers that best explain the TFLOP/s of `ops`."""

    def loss(x: Sequence[float]) -> float:
        if min(x) <= 0:
            return math.inf
        candidate = machine(x)
        errors = (abs(math.log(rate_of(op, candidate) / rate)) for op, rate in ops)
        return math.fsum(errors) / len(ops)

    result = minimize(
        loss,
        start,
        method="Nelder-Mead",
        options={"adaptive": True, "maxiter": 3000, "xatol": 1e-5, "fatol": 1e-9},
    )
    return machine([round_significant(float(value)) for value in result.x])


def tiled_machine(
    x: Sequence[float], num_sms: int, memory_bytes_per_s: float, peak_flops: float = math.inf
) -> GemmMachine:
    """The machine of TFLOP/s, tail quantization, microseconds a tile, and further tiles' speeds."""
    mainloop, quantization, overhead_us, *speeds = x
    tiles: list[Tile] = []
    for (m, n), speed in zip(TILES, (1.0, *speeds), strict=False):
        for shape in sorted({(m, n), (n, m)}, reverse=True):
            tiles.append(Tile(m=shape[0], n=shape[1], relative_speed=min(speed, 1.0)))
    return GemmMachine(
        num_sms=num_sms,
        memory_bytes_per_s=memory_bytes_per_s,
        mainloop_flops=min(mainloop * 1e12, peak_flops),
        tail_quantization=min(quantization, 1.0),
        tile_overhead_s=overhead_us * 1e-6,
        accumulate_overhead_s=0.0,
        batched_fraction=1.0,
        sustained_flops=math.inf,
        tiles=tuple(tiles),
    )


def gemm_residuals(title: str, machine: GemmMachine, points: Sequence[Product]) -> Residuals:
    """How well a machine explains products."""
    rows = [Residual(name_of(_op(p)), p[3], tflops(_op(p), machine)) for p in points]
    return Residuals(title, "TFLOP/s", rows)


def _op(point: Product) -> BlasGemm:
    m, n, k, _ = point
    return BlasGemm(m, n, k)


def _layout_op(point: LayoutProduct) -> BlasGemm:
    m, n, k, layout, _ = point
    if layout != "NT":
        return BlasGemm(m, n, k, layout=layout)
    return BlasGemm(m, n, k, output_element_bytes=FP32_BYTES, accumulate=True, layout=layout)


def _batched_op(point: BatchedTime) -> BlasGemm:
    batch, m, n, k, _, _ = point
    return BlasGemm(m, n, k, batch=batch)


def _batched_us(point: BatchedTime, machine: GemmMachine) -> float:
    return point[4] * gemm_seconds(_batched_op(point), machine) * 1e6


def tflops(op: Gemm, machine: GemmMachine) -> float:
    """The rate that a machine gives a product."""
    return op.flops / gemm_seconds(op, machine) / 1e12


def name_of(op: BlasGemm) -> str:
    """A product's shape and, if given, its layout."""
    layout = f" {op.layout}" if op.layout else ""
    return f"{op.m} × {op.n} × {op.k}{layout}"
