"""Fits the model of matrix products to records of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.fit.checks import require
from calibrate.fit.gemm_model import (
    TILES,
    BlasGemm,
    minimise,
    name_of,
    tflops,
    tiled_machine,
)
from calibrate.fit.residuals import Residual, Residuals, round_significant
from calibrate.records.schema import GemmRecord
from simtrain.durations.gemm import GemmMachine, gemm_seconds
from simtrain.workload.work import FP32_BYTES

_DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of an element, the type that training prefers first."""
_FP8_BYTES, _FP8_RESULT_BYTES = 1, 2
FP8_SPEEDUP = 2.0
"""The peak of fp8 products over that of 16-bit ones, on every NVIDIA GPU that has them."""
_POINTS_A_PARAMETER = 3
_NUM_SHAPE_PARAMETERS = 3
_LARGE = 0.2
"""Products of so much of the largest one's work and more run long enough for power to count."""


@dataclass(frozen=True, slots=True)
class Fp8Fit:
    """The machine of products in fp8, and how well it explains them."""

    machine: GemmMachine
    shapes: Residuals
    sustained: Residuals
    plain_shapes: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class ProductFit:
    """The fitted machine, how well it explains the products, and which type they have."""

    machine: GemmMachine
    dtype: str
    shapes: Residuals
    accumulating: Residuals
    batched: Residuals
    sustained: Residuals
    plain_shapes: Sequence[tuple[int, int, int]]
    batched_shapes: Sequence[tuple[int, int, int]]
    fp8: Fp8Fit | None = None


def fit_products(
    records: Sequence[GemmRecord],
    num_sms: int,
    memory_bytes_per_s: float,
    datasheet_flops: float | None,
) -> ProductFit:
    """Shapes and sustained rate, then what accumulating adds, then batches and moving bytes.

    Operands move at most at `memory_bytes_per_s`; how fast they do, batched products show.
    The loop is at most as fast as the datasheet, or else as the fastest product: more than what was
    seen could not be told from what tiles cost beside it. The type is the first of bf16, fp16 and
    fp32 that was measured. Tiles' relative speeds are fitted where there are three products for
    each number; else all tiles are the first.

    Raises:
        InputError: E720, too few products.
    """
    dtype = next((d for d in _DTYPES if any(r.dtype == d for r in records)), "bf16")
    timed = [(_op(r), r.time.median_s) for r in records if r.dtype == dtype]
    plain = [(op, s) for op, s in timed if op.batch == 1 and not op.accumulate]
    accumulating = [(op, s) for op, s in timed if op.batch == 1 and op.accumulate]
    batched = [(op, s) for op, s in timed if op.batch > 1]
    needed = _POINTS_A_PARAMETER * _NUM_SHAPE_PARAMETERS
    require(f"{dtype} products", len(plain), needed, "products")
    require(f"batched {dtype} products", len(batched), _POINTS_A_PARAMETER, "products")
    machine = _fit_shapes(plain, num_sms, memory_bytes_per_s, datasheet_flops)
    machine = _fit_accumulation(accumulating, machine)
    machine = _fit_batched(batched, machine)
    return ProductFit(
        machine,
        dtype,
        _rates("matrix products by shape", machine, plain),
        _rates("products added into fp32", machine, accumulating),
        _times("batched products", machine, batched),
        _rates("the largest products", machine, _large(plain)),
        [(op.m, op.n, op.k) for op, _ in [*plain, *accumulating]],
        [(op.m, op.n, op.k) for op, _ in batched],
        _fit_fp8([record for record in records if record.dtype == "fp8"], machine, datasheet_flops),
    )


def _fit_fp8(
    records: Sequence[GemmRecord], machine: GemmMachine, datasheet_flops: float | None
) -> Fp8Fit | None:
    """Loop, waves and tiles' overhead of fp8; all else is that of 16-bit products.

    None where none were measured.
    """
    if not records:
        return None
    require("fp8 products", len(records), _POINTS_A_PARAMETER * _NUM_SHAPE_PARAMETERS, "products")
    timed = [(_op(record), record.time.median_s) for record in records]
    rates = [op.flops / seconds for op, seconds in timed]
    most = FP8_SPEEDUP * datasheet_flops if datasheet_flops else round_significant(max(rates))
    sustained = round_significant(max(op.flops / seconds for op, seconds in _large(timed)))

    def found(x: Sequence[float]) -> GemmMachine:
        return machine.replace(
            mainloop_flops=min(x[0] * 1e12, most),
            tail_quantization=min(x[1], 1.0),
            tile_overhead_s=x[2] * 1e-6,
            sustained_flops=sustained,
        )

    overhead_us = max(machine.tile_overhead_s * 1e6, 1e-3)
    start = 1.05 * max(rates) / 1e12, max(machine.tail_quantization, 1e-3), overhead_us
    fitted = minimise(found, start, _rated(timed), tflops)
    return Fp8Fit(
        fitted,
        _rates("fp8 products by shape", fitted, timed),
        _rates("the largest fp8 products", fitted, _large(timed)),
        [(op.m, op.n, op.k) for op, _ in timed],
    )


Timed = Sequence[tuple[BlasGemm, float]]
"""Products and their seconds."""


def _fit_shapes(
    timed: Timed, num_sms: int, memory: float, datasheet_flops: float | None
) -> GemmMachine:
    """Nothing is faster than the fastest of the largest products; then loop, waves and tiles."""
    sustained = round_significant(max(op.flops / seconds for op, seconds in _large(timed)))
    best = max(op.flops / seconds for op, seconds in timed)
    best_tflops, peak_flops = best / 1e12, datasheet_flops or round_significant(best)
    num_parameters = _NUM_SHAPE_PARAMETERS + len(TILES) - 1
    has_tiles = len(timed) >= _POINTS_A_PARAMETER * num_parameters
    speeds = (0.8,) * (len(TILES) - 1 if has_tiles else 0)
    # A few percent of the loop of a tile of middling depth.
    m, n = TILES[0]
    overhead_us = 0.04 * 2 * m * n * 4096 * num_sms / (best_tflops * 1e6)
    return minimise(
        lambda x: tiled_machine(x, num_sms, memory, peak_flops).replace(sustained_flops=sustained),
        (1.05 * best_tflops, 0.7, overhead_us, *speeds),
        _rated(timed),
        tflops,
    )


def _fit_accumulation(timed: Timed, machine: GemmMachine) -> GemmMachine:
    """The longer epilogue of an fp32 accumulation; none where none was measured."""
    if not timed:
        return machine
    start_us = max(machine.tile_overhead_s * 1e6, 1e-3)
    fitted = minimise(
        lambda x: machine.replace(accumulate_overhead_s=x[0] * 1e-6),
        (start_us,),
        _rated(timed),
        tflops,
    )
    overhead_s = round_significant(fitted.accumulate_overhead_s)
    return machine.replace(accumulate_overhead_s=overhead_s)


def _fit_batched(timed: Timed, machine: GemmMachine) -> GemmMachine:
    """The fraction of speed that batches reach, and of the memory that their bytes reach.

    Each product shows one of the two, so that a search may end where none of one kind is left: the
    best of several.
    """

    def found(x: Sequence[float]) -> GemmMachine:
        memory = round_significant(min(x[1], 1.0) * machine.memory_bytes_per_s)
        return machine.replace(batched_fraction=min(x[0], 1.0), memory_bytes_per_s=memory)

    starts = itertools.product((0.5, 0.9), repeat=2)
    machines = [minimise(found, start, _rated(timed), tflops) for start in starts]
    return min(machines, key=lambda fitted: _times("", fitted, timed).mean_abs_error)


def _large(timed: Timed) -> Timed:
    most = max(op.flops for op, _ in timed)
    return [(op, seconds) for op, seconds in timed if op.flops >= _LARGE * most]


def _rated(timed: Timed) -> Timed:
    """Products and their TFLOP/s."""
    return [(op, op.flops / seconds / 1e12) for op, seconds in timed]


def _rates(title: str, machine: GemmMachine, timed: Timed) -> Residuals:
    rows = [Residual(name_of(op), rate, tflops(op, machine)) for op, rate in _rated(timed)]
    return Residuals(title, "TFLOP/s", rows)


def _times(title: str, machine: GemmMachine, timed: Timed) -> Residuals:
    rows = [
        Residual(f"{op.batch} of {name_of(op)}", seconds * 1e6, gemm_seconds(op, machine) * 1e6)
        for op, seconds in timed
    ]
    return Residuals(title, "us", rows)


def _op(record: GemmRecord) -> BlasGemm:
    element_bytes = _DTYPES.get(record.dtype, _FP8_BYTES)
    result_bytes = _FP8_RESULT_BYTES if record.dtype == "fp8" else element_bytes
    return BlasGemm(
        record.m,
        record.n,
        record.k,
        batch=record.batch,
        element_bytes=element_bytes,
        output_element_bytes=FP32_BYTES if record.accumulate else result_bytes,
        accumulate=record.accumulate,
        layout=record.layout,
    )
