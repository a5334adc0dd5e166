"""From figures to a profile: every fit in its order, and its residuals."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.fit.attention_model import published_attention
from calibrate.fit.collectives import other_times
from calibrate.fit.dtypes import fit_dtypes, with_dtypes
from calibrate.fit.figures import Figures
from calibrate.fit.gemm_model import GemmFit, fit_gemm
from calibrate.fit.parts import Data, entry, fit_parts, gemm_entries, profile_data
from calibrate.fit.published_layers import Expected, LayerFit, fit_layer
from calibrate.fit.residuals import Residuals
from calibrate.fit.unused import Unused
from simtrain.hardware.profile import HardwareProfile
from simtrain.strict_yaml import Positions, load_document, validate
from simtrain.units import parse_bytes_per_s
from simtrain.workload.work import CollectiveKind


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile, as the plain data of its file, and how far it is from the figures.

    `num_left_out` records were not fitted because they spread by more than their median. `checks`
    hold the fit against records that it did not see, and `unused` are those that nothing needs.
    """

    data: Data
    residuals: Sequence[Residuals]
    num_left_out: int = 0
    checks: Sequence[Residuals] = ()
    unused: Sequence[Unused] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

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
    parts = fit_parts(figures)
    gemm = fit_gemm(figures, parts.fraction)
    entries = _gemm_entries(figures, gemm)
    by_dtype, further = fit_dtypes(figures, parts, gemm.machine, entries)
    data = profile_data(figures, document.data["datasheet"], parts, entries)
    curves, kernels = parts.curves, parts.kernels
    elsewhere = other_times(figures, curves[CollectiveKind.ALL_REDUCE][0])
    layers = fit_layer(
        figures,
        lambda guess: _draft(data, figures, guess),
        products=Expected(gemm.random_data_speed, gemm.shapes.mean_abs_error),
        kernels=Expected(1.0, kernels.mean_abs_error),
        collectives=Expected(1.0, elsewhere.mean_abs_error),
    )
    data = with_dtypes(_with_layer_fit(data, figures, layers), by_dtype)
    collectives = [residuals for _, residuals in curves.values()]
    products = (gemm.sustained, gemm.shapes, gemm.layouts, gemm.batched, gemm.random_data, *further)
    named = [one.residuals for one in parts.named_kernels]
    shown = (
        kernels,
        parts.small_kernels,
        *named,
        *products,
        *collectives,
        elsewhere,
        layers.residuals,
    )
    fit = Fit(data, shown)
    if figures.fused_attention is None:
        return fit
    return with_attention(fit, *published_attention(figures.fused_attention, fit.profile))


def with_attention(fit: Fit, section: Data, residuals: Sequence[Residuals]) -> Fit:
    """The fit with a section `fused_attention`, and how far it is from its figures."""
    return Fit(fit.data | {"fused_attention": section}, (*fit.residuals, *residuals))


def _draft(data: Data, figures: Figures, guess: LayerFit) -> HardwareProfile:
    return validate(HardwareProfile, _with_layer_fit(data, figures, guess), Positions())


def _gemm_entries(figures: Figures, fit: GemmFit) -> Data:
    return gemm_entries(
        figures,
        fit.machine,
        accumulate_overhead=entry(
            f"{fit.machine.accumulate_overhead_s * 1e6:.4g} us",
            figures.gemm_layouts.source,
            fit.layouts.summary(),
        ),
        batched_fraction=entry(
            fit.machine.batched_fraction, figures.gemm_batched.source, fit.batched.summary()
        ),
        shapes=fit.shapes,
        sustained=fit.sustained,
    )


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
            "in_situ_speed": entry(
                layers.in_situ_speed,
                f"{layer}, with {figures.gemm_random_data.source}",
                fitted_on,
            )
        },
        "memory_bound": memory
        | {
            "fused_bandwidth": entry(
                f"{layers.fused_speed * alone / 1e12:.4g} TB/s",
                f"{layer}, with {fused['source']}",
                f"{fitted_on}; kernels alone: {fused['fitted_on']}",
            )
        },
        "intra_node": data["intra_node"]
        | {
            "in_situ_speed": entry(
                layers.collective_speed,
                f"{layer}, with {figures.all_reduce_elsewhere.source}",
                fitted_on,
            )
        },
        "overlap": {"slowdown": entry(layers.slowdown, layer, fitted_on)},
    }
