"""Fits products of further data types to published ones, beside the fit of 16-bit products.

What others publish of fp8 are calls of a layer, which cast their input before they multiply it. So
a product and its casts are fitted together; the bandwidth of the casts is found and not used.

Runs differ in the clock that power leaves them. Each point has the 16-bit product of the same run
too, and rates are those of a machine on which these are as fast as the profile has them. Tiles are
those of 16-bit products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from calibrate.fit.figures import DtypeProducts, FiguresOfParts, PairedProduct
from calibrate.fit.gemm_model import BlasGemm, minimise, name_of, tflops
from calibrate.fit.parts import Data, Parts, entry, valid_range
from calibrate.fit.residuals import Residual, Residuals, round_significant
from simtrain.durations.gemm import GemmMachine, gemm_seconds

_START = 0.7, 1.0, 2.0
"""Where the search starts: tail quantization, microseconds a tile, TB/s of a cast."""


@dataclass(frozen=True, slots=True)
class CastingMachine:
    """A machine, and what casting the first operand takes before its product."""

    products: GemmMachine
    latency_s: float
    seconds_per_element: float

    def seconds(self, op: BlasGemm) -> float:
        """Seconds of the casts and the product."""
        return self.casts_s(op) + gemm_seconds(op, self.products)

    def casts_s(self, op: BlasGemm) -> float:
        """Seconds of the casts."""
        return self.latency_s + self.seconds_per_element * op.m * op.k


def fit_dtypes(
    figures: FiguresOfParts, parts: Parts, machine: GemmMachine, gemm: Data
) -> tuple[Data, list[Residuals]]:
    """The entries of each further data type, and how well they explain its products.

    Args:
        figures: with `gemm_by_dtype`.
        parts: what a small kernel takes.
        machine, gemm: the fit of 16-bit products, and its entries.
    """
    by_dtype: Data = {}
    found: list[Residuals] = []
    for dtype, products in figures.gemm_by_dtype.items():
        if products.points:
            by_dtype[dtype], *residuals = _fitted(dtype, products, parts, machine, gemm)
            found += residuals
        else:
            by_dtype[dtype] = _in_proportion(figures, products, gemm)
    return by_dtype, found


def with_dtypes(data: Data, by_dtype: Data) -> Data:
    """A profile's data with the entries of further data types, if there are any."""
    return data | {"gemm": data["gemm"] | {"by_dtype": by_dtype}} if by_dtype else data


def _in_proportion(figures: FiguresOfParts, products: DtypeProducts, gemm: Data) -> Data:
    """As fast as 16-bit products against the peak: nobody published others."""
    peak = products.peak_flops.value
    scale = peak / figures.datasheet.gpu.peak_flops.value
    source = "taken over from 16-bit products, in proportion to the peaks: no published products"

    def rate(name: str) -> Data:
        return entry(_tera(scale * float(gemm[name]["value"].split()[0]) * 1e12), source)

    return {
        "peak_flops": entry(_tera(peak), products.peak_flops.source),
        "mainloop_flops": rate("mainloop_flops"),
        "sustained_flops": rate("sustained_flops"),
    }


def _fitted(
    dtype: str, products: DtypeProducts, parts: Parts, machine: GemmMachine, gemm: Data
) -> tuple[Data, Residuals, Residuals]:
    points = products.points
    ops = [_op(point) for point in points]
    published = [(op, point[3]) for op, point in zip(ops, points, strict=True)]
    fit = _fit(products, parts, machine, published)
    shapes = _residuals(f"{dtype} products with their casts", fit, published)
    long = [
        (op, op.flops / (op.flops / (rate * 1e12) - fit.casts_s(op)) / 1e12)
        for op, rate in published
        if op.flops >= products.sustained_from
    ]
    sustained = median(rate for _, rate in long) * 1e12
    limited = CastingMachine(fit.products.replace(sustained_flops=sustained), 0.0, 0.0)
    longest = _residuals(f"sustained {dtype} products", limited, long)
    clock = median(
        tflops(BlasGemm(op.m, op.n, op.k), machine) / point[4]
        for op, point in zip(ops, points, strict=True)
    )
    source, fitted_on = products.source, shapes.summary()
    slower = (
        f"times {clock:.3f}, the speed of this profile's 16-bit products against the same run's"
    )
    peak = products.peak_flops
    return (
        {
            "peak_flops": entry(_tera(peak.value), peak.source),
            "mainloop_flops": entry(
                _tera(clock * fit.products.mainloop_flops), f"{source}; {slower}", fitted_on
            ),
            "sustained_flops": entry(
                _tera(clock * sustained),
                f"median of {source}, products of {products.sustained_from:.0e} FLOPs and more "
                f"without their casts; {slower}",
                longest.summary(),
            ),
            "tail_quantization": entry(round(fit.products.tail_quantization, 4), source, fitted_on),
            "tile_overhead": entry(
                f"{fit.products.tile_overhead_s * 1e6:.4g} us", source, fitted_on
            ),
            "valid_shapes": valid_range([point[:3] for point in points], source),
        },
        shapes,
        longest,
    )


def _fit(
    products: DtypeProducts,
    parts: Parts,
    machine: GemmMachine,
    published: Sequence[tuple[BlasGemm, float]],
) -> CastingMachine:
    def candidate(x: Sequence[float]) -> CastingMachine:
        mainloop, quantization, overhead_us, cast_tera = x
        return CastingMachine(
            machine.replace(
                mainloop_flops=mainloop * 1e12,
                tail_quantization=min(quantization, 1.0),
                tile_overhead_s=overhead_us * 1e-6,
                sustained_flops=products.peak_flops.value,
            ),
            products.num_casts * parts.latency_s,
            products.cast_bytes / (cast_tera * 1e12),
        )

    fastest = max(rate for _, rate in published)
    return minimise(candidate, (fastest, *_START), published, _tflops)


def _tflops(op: BlasGemm, machine: CastingMachine) -> float:
    return op.flops / machine.seconds(op) / 1e12


def _residuals(
    title: str, machine: CastingMachine, products: Sequence[tuple[BlasGemm, float]]
) -> Residuals:
    rows = [Residual(name_of(op), rate, _tflops(op, machine)) for op, rate in products]
    return Residuals(title, "TFLOP/s", rows)


def _op(point: PairedProduct) -> BlasGemm:
    m, n, k, _, _ = point
    return BlasGemm(m, n, k, element_bytes=1)


def _tera(flops: float) -> str:
    return f"{round_significant(flops) / 1e12:.4g} TFLOP/s"
