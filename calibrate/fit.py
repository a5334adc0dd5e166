"""From figures to a profile: every fit in its order, and its residuals."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibrate.collective_fit import fit_collective, other_times
from calibrate.figures import Figures
from calibrate.gemm_fit import GemmFit, fit_gemm
from calibrate.layer_fit import Expected, LayerFit, fit_layer
from calibrate.memory_fit import fit_kernel_latency, fit_kernels
from calibrate.residuals import Residuals
from simtrain.hardware.profile import HardwareProfile
from simtrain.strict_yaml import Positions, load_document, validate
from simtrain.units import parse_bytes_per_s
from simtrain.workload.ops import CollectiveKind

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile, as the plain data of its file, and how far it is from the figures."""

    data: Data
    residuals: Sequence[Residuals]

    @property
    def profile(self) -> HardwareProfile:
        """The profile as everything else reads it."""
        return validate(HardwareProfile, self.data, Positions())


def fit_profile(path: pathlib.Path) -> Fit:
    """Fit products and collectives on their microbenchmarks, then the rest on whole layers.

    Raises:
        InputError: the figures cannot be read, or are too few or absurd.
    """
    document = load_document(path)
    figures = validate(Figures, document.data, document.positions)
    fraction, kernels = fit_kernels(figures)
    latency_s, small_kernels = fit_kernel_latency(figures)
    gemm = fit_gemm(figures, fraction)
    curves = {kind: fit_collective(figures, kind) for kind in CollectiveKind}
    sheet = document.data["datasheet"]
    data = {
        "version": 1,
        "name": figures.name,
        "description": figures.description,
        "calibrated": True,
        "cluster": sheet["cluster"],
        "gpu": sheet["gpu"],
        "memory": sheet["memory"],
        "gemm": _gemm_entries(figures, gemm),
        "memory_bound": {
            "fused_bandwidth": _entry(
                f"{fraction * figures.datasheet.gpu.memory_bandwidth.value / 1e12:.4g} TB/s",
                f"{fraction:.3f} of the memory bandwidth, as {figures.kernels.source}",
                kernels.summary(),
            ),
            "stream_bandwidth": sheet["stream_bandwidth"],
            "kernel_latency": _entry(
                f"{latency_s * 1e6:.3g} us", figures.small_kernels.source, small_kernels.summary()
            ),
        },
        "host": {"issue": sheet["host_issue"]},
        "host_link": sheet["host_link"],
        "overlap": {},
        "intra_node": dict(sheet["intra_node"]),
        "inter_node": sheet["inter_node"],
    }
    for kind, (points, residuals) in curves.items():
        data["intra_node"][kind.value] = _entry(
            points, figures.collectives.source, residuals.summary()
        )
    elsewhere = other_times(figures, curves[CollectiveKind.ALL_REDUCE][0])
    layers = fit_layer(
        figures,
        lambda guess: _draft(data, figures, guess),
        products=Expected(gemm.random_data_speed, gemm.shapes.mean_abs_error),
        kernels=Expected(1.0, kernels.mean_abs_error),
        collectives=Expected(1.0, elsewhere.mean_abs_error),
    )
    data = _with_layer_fit(data, figures, layers)
    collectives = [residuals for _, residuals in curves.values()]
    products = (gemm.sustained, gemm.shapes, gemm.layouts, gemm.batched, gemm.random_data)
    shown = (kernels, small_kernels, *products, *collectives, elsewhere, layers.residuals)
    return Fit(data, shown)


def _draft(data: Data, figures: Figures, guess: LayerFit) -> HardwareProfile:
    return validate(HardwareProfile, _with_layer_fit(data, figures, guess), Positions())


def _gemm_entries(figures: Figures, fit: GemmFit) -> Data:
    machine, source = fit.machine, figures.gemm.source
    shapes = fit.shapes.summary()
    batched_source = figures.gemm_batched.source
    tiles = [tile.model_dump() for tile in machine.tiles]
    return {
        "mainloop_flops": _entry(f"{machine.mainloop_flops / 1e12:.4g} TFLOP/s", source, shapes),
        "tail_quantization": _entry(machine.tail_quantization, source, shapes),
        "tile_overhead": _entry(f"{machine.tile_overhead_s * 1e6:.4g} us", source, shapes),
        "tiles": _entry(tiles, source, shapes),
        "accumulate_overhead": _entry(
            f"{machine.accumulate_overhead_s * 1e6:.4g} us",
            figures.gemm_layouts.source,
            fit.layouts.summary(),
        ),
        "sustained_flops": _entry(
            f"{machine.sustained_flops / 1e12:.4g} TFLOP/s",
            f"median of {figures.gemm_sustained.source}",
            fit.sustained.summary(),
        ),
        "batched_fraction": _entry(machine.batched_fraction, batched_source, fit.batched.summary()),
        "valid_shapes": _range([point[:3] for point in figures.gemm.points], source),
        "valid_batched_shapes": _range(
            [point[1:4] for point in figures.gemm_batched.points], batched_source
        ),
    }


def _range(shapes: Sequence[tuple[int, int, int]], source: str) -> Data:
    """The sizes between which products were measured."""
    axes = zip("mnk", zip(*shapes, strict=True), strict=True)
    seen = {name: [min(sizes), max(sizes)] for name, sizes in axes}
    return {"value": seen, "source": f"the range of the points of {source}"}


def _with_layer_fit(data: Data, figures: Figures, layers: LayerFit) -> Data:
    """The data with the four numbers that whole layers decide."""
    fitted_on = layers.residuals.summary()
    layer = figures.layer.source
    memory = data["memory_bound"]
    fused = memory["fused_bandwidth"]
    alone = parse_bytes_per_s(fused["value"])
    return data | {
        "gemm": data["gemm"]
        | {
            "in_situ_speed": _entry(
                layers.in_situ_speed,
                f"{layer}, with {figures.gemm_random_data.source}",
                fitted_on,
            )
        },
        "memory_bound": memory
        | {
            "fused_bandwidth": _entry(
                f"{layers.fused_speed * alone / 1e12:.4g} TB/s",
                f"{layer}, with {fused['source']}",
                f"{fitted_on}; kernels alone: {fused['fitted_on']}",
            )
        },
        "intra_node": data["intra_node"]
        | {
            "in_situ_speed": _entry(
                layers.collective_speed,
                f"{layer}, with {figures.all_reduce_elsewhere.source}",
                fitted_on,
            )
        },
        "overlap": {"slowdown": _entry(layers.slowdown, layer, fitted_on)},
    }


def _entry(value: Any, source: str, fitted_on: str) -> Data:
    return {"value": value, "source": source, "fitted_on": fitted_on}
