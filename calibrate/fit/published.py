"""Fit a profile to published measurements.

Matrix products, kernels, collectives and fused attention are fitted separately. Four numbers need
measurements of whole layers. Without published layers they come from the file's section
`taken_over`, each with its source.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping

from calibrate.fit.attention import published_attention, training_attention
from calibrate.fit.entry import Data, micro, published, tera
from calibrate.fit.figures import Figures, FiguresWithoutLayers, FusedAttentionFigures
from calibrate.fit.kernels import PublishedKernels
from calibrate.fit.layers import InSitu, fit_layers
from calibrate.fit.links import fit_curves, other_times
from calibrate.fit.products import gemm_section
from calibrate.fit.published_products import ProductFit, fit_dtypes
from calibrate.fit.result import Fit, profile_of
from simtrain.scenario import load_scenario
from simtrain.strict_yaml import load_document, validate
from simtrain.units import parse_bytes_per_s
from simtrain.workload.work import CollectiveKind

_TAKEN_OVER = "taken_over"
_ROUNDING_MS = 0.1 / math.sqrt(12)
"""Standard deviation of a number printed to 0.1 ms."""
_START_SLOWDOWN = 0.3
"""Where the search for the slowdown of overlap starts."""


def fit_figures(path: pathlib.Path) -> Fit:
    """Fit the measurements in a file.

    Raises:
        InputError: the file cannot be read, or its values are too few or outside their ranges.
    """
    document = load_document(path)
    has_layers = _TAKEN_OVER not in document.data
    schema: type[Figures | FiguresWithoutLayers] = Figures if has_layers else FiguresWithoutLayers
    figures = validate(schema, document.data, document.positions)
    sheet, taken_over = document.data["datasheet"], document.data.get(_TAKEN_OVER, {})
    kernels = PublishedKernels(figures, sheet["stream_bandwidth"])
    products = ProductFit(figures, kernels.fraction)
    by_dtype, of_dtypes = fit_dtypes(figures, kernels.latency_s, products.machine)
    bandwidth, timed = figures.datasheet.intra_node.bandwidth.value, figures.collectives
    curves = {kind: fit_curves(found, kind, bandwidth) for kind, found in timed.curves.items()}
    largest = curves[CollectiveKind.ALL_REDUCE][0][-1]
    elsewhere = other_times(figures.all_reduce_elsewhere.points, largest, bandwidth)
    data: Data = {
        "version": 1,
        "name": figures.name,
        "description": figures.description,
        "calibrated": True,
        **{name: sheet[name] for name in ("cluster", "gpu", "memory")},
        "gemm": _gemm(figures, products, taken_over),
        "memory_bound": kernels.section,
        "host": {"issue": sheet["host_issue"]},
        "host_link": sheet["host_link"],
        "overlap": {},
        "intra_node": sheet["intra_node"]
        | {
            kind.value: published(timed.source, found)(each)
            for kind, (each, found) in curves.items()
        },
        **{
            name: sheet[name]
            for name in ("inter_node", "running_costs", "collectives")
            if name in sheet
        },
    }
    shown = [*kernels.comparisons, *products.comparisons, *of_dtypes]
    shown += [*(comparison for _, comparison in curves.values()), elsewhere]
    if isinstance(figures, Figures):
        of_layer, full = figures.layer, data
        layers = [
            (
                name,
                load_scenario(of_layer.scenario.format(strategy=name)),
                times,
                (_ROUNDING_MS,) * 2,
            )
            for name, *times in of_layer.times
        ]
        estimates = (
            (products.speed_elsewhere, products.shapes.mean_abs_error),
            (1.0, kernels.comparisons[0].mean_abs_error),
            (1.0, elsewhere.mean_abs_error),
        )
        in_situ = fit_layers(
            "layers",
            layers,
            lambda guess: profile_of(_with_layers(full, figures, guess)),
            estimates,
            (*(value for value, _ in estimates), _START_SLOWDOWN),
            (0.0, math.inf),
        )
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
    if (attention := figures.fused_attention) is not None:
        section, of_attention = (
            published_attention(attention, profile_of(data))
            if isinstance(attention, FusedAttentionFigures)
            else training_attention(attention, profile_of(data))
        )
        data, shown = data | {"fused_attention": section}, [*shown, *of_attention]
    return Fit(data, shown)


def _gemm(
    figures: Figures | FiguresWithoutLayers, fit: ProductFit, taken_over: Mapping[str, Data]
) -> Data:
    """Build the section `gemm`, without the speed inside a layer."""
    machine = fit.machine
    if isinstance(figures, Figures):
        by_layout = published(figures.gemm_layouts.source, fit.layouts[0])
        overhead = by_layout(micro(machine.accumulate_overhead_s))
        batched = published(figures.gemm_batched.source, fit.batched)
        fraction = batched(machine.batched_fraction)
    else:
        overhead, fraction = taken_over["accumulate_overhead"], taken_over["batched_fraction"]
    shapes = published(figures.gemm.source, fit.shapes)
    sustained = published(f"median of {figures.gemm_sustained.source}", fit.sustained)
    section = gemm_section(machine, shapes, sustained, overhead, fraction)
    return section | {"valid_shapes": fit.valid_shapes, "valid_batched_shapes": fit.valid_batches}


def _with_layers(data: Data, figures: Figures, layers: InSitu) -> Data:
    """Add the four numbers fitted on whole layers."""
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
    """Return the data with further entries in its sections."""
    return data | {name: data[name] | section for name, section in sections.items()}
