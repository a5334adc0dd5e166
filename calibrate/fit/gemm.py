"""The model of matrix products (`simtrain.durations.gemm`): its search, and a profile's section."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibrate.fit.entry import Data, Evidence, micro, tera
from simtrain.comparison import Comparison
from simtrain.durations.gemm import GemmMachine, gemm_seconds
from simtrain.hardware.profile import Tile
from simtrain.workload.work import Gemm

TILES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64))
"""Tiles of BLAS libraries; the speeds of the others are relative to the first."""


@dataclass(frozen=True, slots=True)
class BlasGemm(Gemm):
    """A product and the layout of its operands as BLAS writes it, such as TN; "" if not given."""

    layout: str = ""

    @property
    def name(self) -> str:
        """The shape and, if given, the layout."""
        return f"{self.m} × {self.n} × {self.k} {self.layout}".rstrip()


Rated = Sequence[tuple[BlasGemm, float]]
"""Products and their measured TFLOP/s."""


def tflops(op: Gemm, machine: GemmMachine) -> float:
    """Rate of a product on a machine."""
    return op.flops / gemm_seconds(op, machine) / 1e12


def rates(title: str, machine: GemmMachine, products: Rated) -> Comparison:
    """Compare measured rates with a machine's."""
    rows = ((op.name, rate, tflops(op, machine)) for op, rate in products)
    return Comparison.of(title, "TFLOP/s", rows)


def batch_times(
    title: str, machine: GemmMachine, timed: Iterable[tuple[BlasGemm, int, float]]
) -> Comparison:
    """Compare measured microseconds of several equal batched products with a machine's."""
    rows = (
        (f"{op.batch} of {op.name}", time_us, count * gemm_seconds(op, machine) * 1e6)
        for op, count, time_us in timed
    )
    return Comparison.of(title, "us", rows)


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
