"""What kernels and collectives are by themselves, and the profile's data that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrate.fit.collectives import fit_collective
from calibrate.fit.figures import FiguresOfParts
from calibrate.fit.published_kernels import (
    NamedKernel,
    fit_kernel_latency,
    fit_kernels,
    fit_named_kernels,
)
from calibrate.fit.residuals import Residuals
from simtrain.durations.gemm import GemmMachine
from simtrain.workload.work import CollectiveKind

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Kernels' fraction of the memory bandwidth and latency in seconds; collectives' curves."""

    fraction: float
    kernels: Residuals
    latency_s: float
    small_kernels: Residuals
    named_kernels: Sequence[NamedKernel]
    curves: Mapping[CollectiveKind, tuple[list[Data], Residuals]]


def fit_parts(figures: FiguresOfParts) -> Parts:
    """Fit kernels and collectives."""
    fraction, kernels = fit_kernels(figures)
    latency_s, small_kernels = fit_kernel_latency(figures)
    curves = {kind: fit_collective(figures, kind) for kind in figures.collectives.kinds}
    named = fit_named_kernels(figures, latency_s)
    return Parts(fraction, kernels, latency_s, small_kernels, named, curves)


def profile_data(figures: FiguresOfParts, sheet: Data, parts: Parts, gemm: Data) -> Data:
    """A profile's data from its parts; `sheet` is the datasheet as it was written."""
    memory_bandwidth = figures.datasheet.gpu.memory_bandwidth.value

    def bandwidth(fraction: float, source: str, fitted_on: str) -> Data:
        value = f"{fraction * memory_bandwidth / 1e12:.4g} TB/s"
        return entry(value, f"{fraction:.3f} of the memory bandwidth, as {source}", fitted_on)

    kernels: Data = {}
    for one in parts.named_kernels:
        found = bandwidth(one.fraction, one.source, one.residuals.summary())
        kernels.setdefault(one.kernel, {})[one.way] = found
    data = {
        "version": 1,
        "name": figures.name,
        "description": figures.description,
        "calibrated": True,
        "cluster": sheet["cluster"],
        "gpu": sheet["gpu"],
        "memory": sheet["memory"],
        "gemm": gemm,
        "memory_bound": {
            "fused_bandwidth": bandwidth(
                parts.fraction, figures.kernels.source, parts.kernels.summary()
            ),
            "stream_bandwidth": sheet["stream_bandwidth"],
            "kernel_latency": entry(
                f"{parts.latency_s * 1e6:.3g} us",
                figures.small_kernels.source,
                parts.small_kernels.summary(),
            ),
            **({"kernels": kernels} if kernels else {}),
        },
        "host": {"issue": sheet["host_issue"]},
        "host_link": sheet["host_link"],
        "overlap": {},
        "intra_node": dict(sheet["intra_node"]),
        "inter_node": sheet["inter_node"],
        "running_costs": sheet["running_costs"],
    }
    if "collectives" in sheet:
        data["collectives"] = sheet["collectives"]
    for kind, (points, residuals) in parts.curves.items():
        data["intra_node"][kind.value] = entry(
            points, figures.collectives.source, residuals.summary()
        )
    return data


def gemm_entries(
    figures: FiguresOfParts,
    machine: GemmMachine,
    *,
    accumulate_overhead: Data,
    batched_fraction: Data,
    shapes: Residuals,
    sustained: Residuals,
) -> Data:
    """The entries of matrix products, but for their speed in situ."""
    source, fitted_on = figures.gemm.source, shapes.summary()
    return {
        "mainloop_flops": entry(f"{machine.mainloop_flops / 1e12:.4g} TFLOP/s", source, fitted_on),
        "tail_quantization": entry(machine.tail_quantization, source, fitted_on),
        "tile_overhead": entry(f"{machine.tile_overhead_s * 1e6:.4g} us", source, fitted_on),
        "tiles": entry([tile.model_dump() for tile in machine.tiles], source, fitted_on),
        "accumulate_overhead": accumulate_overhead,
        "sustained_flops": entry(
            f"{machine.sustained_flops / 1e12:.4g} TFLOP/s",
            f"median of {figures.gemm_sustained.source}",
            sustained.summary(),
        ),
        "batched_fraction": batched_fraction,
        "valid_shapes": valid_range([point[:3] for point in figures.gemm.points], source),
        "valid_batched_shapes": valid_range(
            [point[1:4] for point in figures.gemm_batched.points], figures.gemm_batched.source
        ),
    }


def valid_range(shapes: Sequence[tuple[int, int, int]], source: str) -> Data:
    """The sizes between which products were measured."""
    axes = zip("mnk", zip(*shapes, strict=True), strict=True)
    seen = {name: [min(sizes), max(sizes)] for name, sizes in axes}
    return {"value": seen, "source": f"the range of the points of {source}"}


def entry(value: Any, source: str, fitted_on: str | None = None) -> Data:
    """A number as a profile holds it; `fitted_on` where it is a fit's."""
    number = {"value": value, "source": source}
    return number if fitted_on is None else number | {"fitted_on": fitted_on}
