"""Fits the model of matrix products (`simtrain.durations.model`) to records of them.

First the model's search and a profile's section, which the fit of published figures has, too.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from calibrate.fit.base import (
    Data,
    Evidence,
    micro,
    minimise,
    round_significant,
    shape_range,
    tera,
)
from calibrate.fit.doubts import require
from calibrate.records.schema import GemmRecord
from simtrain.base.accuracy import ErrorTable
from simtrain.durations.model import GemmMachine, gemm_seconds
from simtrain.hardware.profile import LayoutSpeeds, Tile
from simtrain.workload.work import FP32_BYTES, Gemm

TILES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64))
"""Tiles of BLAS libraries; the speeds of the others are relative to the first."""
FP8_SPEEDUP = 2.0
"""The peak of fp8 products over that of 16-bit ones, on every NVIDIA GPU that has them."""
_DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of an element, the type that training prefers first."""
_FP8_BYTES, _FP8_RESULT_BYTES = 1, 2
_POINTS_A_PARAMETER = 3
_NUM_SHAPE_PARAMETERS = 3
_LARGE = 0.2
"""Products from this share of the largest one's work on run long enough for power to count."""


@dataclass(frozen=True, slots=True)
class BlasGemm(Gemm):
    """A product and the layout of its operands as BLAS writes it, such as TN; "" if not given."""

    layout: str = ""

    @property
    def name(self) -> str:
        return f"{self.m} × {self.n} × {self.k} {self.layout}".rstrip()


Rated = Sequence[tuple[BlasGemm, float]]
"""Products and their measured TFLOP/s."""


def tflops(op: Gemm, machine: GemmMachine) -> float:
    """Rate of a product on a machine."""
    return op.flops / gemm_seconds(op, machine) / 1e12


def rates(title: str, machine: GemmMachine, products: Rated) -> ErrorTable:
    """Compare measured rates with a machine's."""
    rows = ((op.name, rate, tflops(op, machine)) for op, rate in products)
    return ErrorTable.of(title, "TFLOP/s", rows)


def batch_times(
    title: str, machine: GemmMachine, timed: Iterable[tuple[BlasGemm, int, float]]
) -> ErrorTable:
    """Compare measured microseconds of several equal batched products with a machine's."""
    rows = (
        (f"{op.batch} of {op.name}", time_us, count * gemm_seconds(op, machine) * 1e6)
        for op, count, time_us in timed
    )
    return ErrorTable.of(title, "us", rows)


def tiled_machine(
    x: Sequence[float], num_sms: int, memory_bytes_per_s: float, peak_flops: float = math.inf
) -> GemmMachine:
    """Build the machine of the arguments of `with_loop` and further tiles' relative speeds."""
    tiles = [
        Tile(m=m, n=n, relative_speed=min(speed, 1.0))
        for shape, speed in zip(TILES, (1.0, *x[3:]), strict=False)
        for m, n in sorted({shape, shape[::-1]}, reverse=True)
    ]
    machine = GemmMachine(
        num_sms, memory_bytes_per_s, 1.0, 1.0, 0.0, 0.0, 1.0, math.inf, tuple(tiles)
    )
    return with_loop(machine, x[:3], peak_flops)


def with_loop(machine: GemmMachine, x: Sequence[float], peak_flops: float) -> GemmMachine:
    """Set TFLOP/s of at most the peak, tail quantization, and microseconds a tile."""
    mainloop, quantization, overhead_us = x
    return machine.replace(
        mainloop_flops=min(mainloop * 1e12, peak_flops),
        tail_quantization=min(quantization, 1.0),
        tile_overhead_s=overhead_us * 1e-6,
    )


def gemm_section(
    machine: GemmMachine,
    shapes: Evidence,
    sustained: Evidence,
    accumulate_overhead: Data,
    batched_fraction: Data,
) -> Data:
    """The section `gemm`, without valid shapes and the speed inside a layer."""
    return {
        "mainloop_flops": shapes(tera(machine.mainloop_flops, "FLOP/s")),
        "tail_quantization": shapes(machine.tail_quantization),
        "tile_overhead": shapes(micro(machine.tile_overhead_s)),
        "tiles": shapes([tile.model_dump() for tile in machine.tiles]),
        "accumulate_overhead": accumulate_overhead,
        "sustained_flops": sustained(tera(machine.sustained_flops, "FLOP/s")),
        "batched_fraction": batched_fraction,
    }


def dtype_section(
    machine: GemmMachine,
    peak: Data,
    mainloop: Evidence,
    sustained: Evidence,
    shapes: Evidence,
    valid_shapes: Data,
) -> Data:
    """A data type's part of the section `gemm`."""
    return {
        "peak_flops": peak,
        "mainloop_flops": mainloop(tera(machine.mainloop_flops, "FLOP/s")),
        "sustained_flops": sustained(tera(machine.sustained_flops, "FLOP/s")),
        "tail_quantization": shapes(machine.tail_quantization),
        "tile_overhead": shapes(micro(machine.tile_overhead_s)),
        "valid_shapes": valid_shapes,
    }


_NO_LAYOUTS = ErrorTable("products by layout", "TFLOP/s", ())


@dataclass(frozen=True, slots=True)
class DtypeFit:
    """The machine of the plain products of a data type, its errors, and their range of shapes."""

    machine: GemmMachine
    shapes: ErrorTable
    sustained: ErrorTable
    plain_range: Data
    by_layout: ErrorTable = _NO_LAYOUTS


@dataclass(frozen=True, slots=True)
class ProductFit(DtypeFit):
    """The fit of the data type of training, with fp32 accumulation, batches and fp8.

    Without enough batched products it has none of their entries, and no range.
    """

    dtype: str = field(kw_only=True)
    accumulating: ErrorTable = field(kw_only=True)
    batched: ErrorTable = field(kw_only=True)
    batched_range: Data | None = field(kw_only=True)
    fp8: DtypeFit | None = field(kw_only=True)


def fit_products(
    records: Sequence[GemmRecord],
    num_sms: int,
    memory: float,
    datasheet_flops: float | None,
    dtype: str | None = None,
) -> ProductFit:
    """Fit shapes and the sustained rate, then fp32 accumulation, then batches and moving bytes.

    The data type is `dtype`, or the first of bf16, fp16 and fp32 that was measured. The loop is at
    most as fast as the datasheet's 16-bit peak, or else as the fastest product: a higher rate would
    be indistinguishable from a lower cost of tiles. The relative speeds of tiles are fitted if
    there are three products for each number; else all tiles are like the first. Operands move at
    most at `memory` bytes/s; batched products show the actual rate.

    Raises:
        InputError: E720, too few products.
    """
    dtype = dtype or next((d for d in _DTYPES if any(r.dtype == d for r in records)), "bf16")
    products, fp8 = _rated(records, dtype), _rated(records, "fp8")
    plain = [(op, rate) for op, rate in products if op.batch == 1 and not op.accumulate]
    accumulating = [(op, rate) for op, rate in products if op.batch == 1 and op.accumulate]
    batched = [(op, rate) for op, rate in products if op.batch > 1]
    _require(f"{dtype} products", plain, _NUM_SHAPE_PARAMETERS)
    has_batches = len(batched) >= _POINTS_A_PARAMETER
    has_fp8 = len(fp8) >= _POINTS_A_PARAMETER * _NUM_SHAPE_PARAMETERS
    machine = _fit_shapes(plain, num_sms, memory, datasheet_flops)
    machine = machine.replace(layouts=_layout_speeds(plain, machine))
    if accumulating:  # the longer epilogue
        start, shaped = [max(machine.tile_overhead_s * 1e6, 1e-3)], machine
        fitted = minimise(
            lambda x: shaped.replace(accumulate_overhead_s=x[0] * 1e-6), start, accumulating, tflops
        )
        overhead_s = round_significant(fitted.accumulate_overhead_s)
        machine = machine.replace(accumulate_overhead_s=overhead_s)
    if has_batches:
        machine = _fit_batched(batched, machine)
    return ProductFit(
        machine,
        rates("matrix products by shape", machine, plain),
        rates("the largest products", machine, _large(plain)),
        _range([*plain, *accumulating]),
        _by_layout(plain, machine),
        dtype=dtype,
        accumulating=rates("products added into fp32", machine, accumulating),
        batched=_times("batched products", machine, batched if has_batches else ()),
        batched_range=_range(batched) if has_batches else None,
        fp8=_fit_fp8(fp8, machine, datasheet_flops) if has_fp8 else None,
    )


def _layout_speeds(products: Rated, machine: GemmMachine) -> LayoutSpeeds:
    """The speed of each layout, relative to all: the median of measured over fitted rates.

    A layout of too few products is as fast as all.
    """
    speeds = {}
    for layout in LayoutSpeeds.model_fields:
        ratios = [rate / tflops(op, machine) for op, rate in products if op.layout == layout]
        enough = len(ratios) >= _POINTS_A_PARAMETER
        speeds[layout] = round_significant(median(ratios)) if enough else 1.0
    return LayoutSpeeds(**speeds)


def _by_layout(products: Rated, machine: GemmMachine) -> ErrorTable:
    with_layout = [pair for pair in products if pair[0].layout]
    return replace(rates("", machine, with_layout), title="products by layout")


def _fit_fp8(products: Rated, machine: GemmMachine, datasheet_flops: float | None) -> DtypeFit:
    """Loop, waves and tiles' overhead of fp8; all else is like 16-bit products."""
    machine = machine.replace(layouts=None)  # all are TN
    large, fastest = _large(products), _fastest(products)
    most = FP8_SPEEDUP * datasheet_flops if datasheet_flops else round_significant(fastest)
    limited = machine.replace(sustained_flops=round_significant(_fastest(large)))
    overhead_us = max(machine.tile_overhead_s * 1e6, 1e-3)
    start = 1.05 * fastest / 1e12, max(machine.tail_quantization, 1e-3), overhead_us
    fitted = minimise(lambda x: with_loop(limited, x, most), start, products, tflops)
    return DtypeFit(
        fitted,
        rates("fp8 products by shape", fitted, products),
        rates("the largest fp8 products", fitted, large),
        _range(products),
    )


def _fit_shapes(
    products: Rated, num_sms: int, memory: float, datasheet_flops: float | None
) -> GemmMachine:
    """Fit plain products. The sustained rate is the fastest rate of a large product."""
    sustained, fastest = round_significant(_fastest(_large(products))), _fastest(products)
    peak_flops = datasheet_flops or round_significant(fastest)
    num_parameters = _NUM_SHAPE_PARAMETERS + len(TILES) - 1
    has_tiles = len(products) >= _POINTS_A_PARAMETER * num_parameters
    speeds = (0.8,) * (len(TILES) - 1 if has_tiles else 0)
    # A few percent of the loop of a tile of middling depth.
    m, n = TILES[0]
    overhead_us = 0.04 * 2 * m * n * 4096 * num_sms / (fastest / 1e12 * 1e6)
    return minimise(
        lambda x: tiled_machine(x, num_sms, memory, peak_flops).replace(sustained_flops=sustained),
        (1.05 * fastest / 1e12, 0.7, overhead_us, *speeds),
        products,
        tflops,
    )


def _fit_batched(products: Rated, machine: GemmMachine) -> GemmMachine:
    """The machine with the speed of batches, and with the memory bandwidth of their bytes.

    Each product shows one of the two, so that a search may end where no product shows the other:
    the best of several searches counts.
    """

    def candidate(x: Sequence[float]) -> GemmMachine:
        memory = round_significant(min(x[1], 1.0) * machine.memory_bytes_per_s)
        return machine.replace(batched_fraction=min(x[0], 1.0), memory_bytes_per_s=memory)

    starts = itertools.product((0.5, 0.9), repeat=2)
    machines = [minimise(candidate, start, products, tflops) for start in starts]
    return min(machines, key=lambda fitted: _times("", fitted, products).mean_abs_error)


def _require(what: str, products: Rated, num_parameters: int) -> None:
    require(what, len(products), _POINTS_A_PARAMETER * num_parameters, "products")


def _fastest(products: Rated) -> float:
    return max(rate for _, rate in products) * 1e12


def _large(products: Rated) -> Rated:
    most = max(op.flops for op, _ in products)
    return [(op, rate) for op, rate in products if op.flops >= _LARGE * most]


def _times(title: str, machine: GemmMachine, products: Rated) -> ErrorTable:
    return batch_times(title, machine, ((op, 1, op.flops / rate / 1e6) for op, rate in products))


def _range(products: Rated) -> Data:
    return shape_range([op for op, _ in products])


def _rated(records: Iterable[GemmRecord], dtype: str) -> Rated:
    """The products of a data type; those in fp8 have a 16-bit result."""
    element_bytes = _DTYPES.get(dtype, _FP8_BYTES)
    result_bytes = _FP8_RESULT_BYTES if dtype == "fp8" else element_bytes
    products = []
    for r in records:
        if r.dtype == dtype:
            op = BlasGemm(
                *(r.m, r.n, r.k, r.batch),
                element_bytes=element_bytes,
                output_element_bytes=FP32_BYTES if r.accumulate else result_bytes,
                accumulate=r.accumulate,
                layout=r.layout,
            )
            products.append((op, op.flops / r.time.median_s / 1e12))
    return products
