"""Fits a profile of a machine on which nobody published whole layers.

Products, kernels and collectives are fitted as for any other machine. What only layouts and whole
layers show is taken over from the figures' own section `taken_over`, each number with a source that
says where it is from.
"""

from __future__ import annotations

import pathlib

from calibrate.fit.attention_model import training_attention
from calibrate.fit.collectives import other_times
from calibrate.fit.dtypes import fit_dtypes, with_dtypes
from calibrate.fit.figures import FiguresWithoutLayers
from calibrate.fit.from_figures import Fit, fit_profile, with_attention
from calibrate.fit.gemm_model import fit_gemm_without_layers, gemm_residuals
from calibrate.fit.parts import Data, fit_parts, gemm_entries, profile_data
from simtrain.strict_yaml import Document, load_document, validate
from simtrain.workload.work import CollectiveKind

_SECTION = "taken_over"


def fit_figures(path: pathlib.Path) -> Fit:
    """Fit with whole layers, or without where the figures have a section `taken_over`.

    Raises:
        InputError: the figures cannot be read, or are too few or absurd.
    """
    document = load_document(path)
    return _fit_without_layers(document) if _SECTION in document.data else fit_profile(path)


def _fit_without_layers(document: Document) -> Fit:
    figures = validate(FiguresWithoutLayers, document.data, document.positions)
    taken_over = document.data[_SECTION]
    parts = fit_parts(figures)
    products = fit_gemm_without_layers(figures, parts.fraction)
    gemm = gemm_entries(
        figures,
        products.machine,
        accumulate_overhead=taken_over["accumulate_overhead"],
        batched_fraction=taken_over["batched_fraction"],
        shapes=products.shapes,
        sustained=products.sustained,
    )
    by_dtype, further = fit_dtypes(figures, parts, products.machine, gemm)
    data = profile_data(figures, document.data["datasheet"], parts, gemm)
    residuals = (
        *(parts.kernels, parts.small_kernels),
        *(one.residuals for one in parts.named_kernels),
        *(products.sustained, products.shapes, products.batched),
        *further,
        gemm_residuals(
            "matrix products measured elsewhere (not fitted)",
            products.machine,
            figures.gemm_elsewhere.points,
        ),
        *(curve_residuals for _, curve_residuals in parts.curves.values()),
        other_times(figures, parts.curves[CollectiveKind.ALL_REDUCE][0]),
    )
    fit = Fit(with_dtypes(_with_taken_over(data, taken_over), by_dtype), residuals)
    if figures.fused_attention is None:
        return fit
    return with_attention(fit, *training_attention(figures.fused_attention, fit.profile))


def _with_taken_over(data: Data, taken_over: Data) -> Data:
    return data | {
        "gemm": data["gemm"] | {"in_situ_speed": taken_over["gemm_in_situ_speed"]},
        "overlap": {"slowdown": taken_over["slowdown"]},
        "intra_node": data["intra_node"]
        | {"in_situ_speed": taken_over["collective_in_situ_speed"]},
    }
