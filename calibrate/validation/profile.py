"""Validates a profile on held-out measurements: layers, whole iterations, and their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from calibrate.records.schema import Header, IterationRecord, LayerRecord, Measurement
from calibrate.validation.limits import Limits
from simtrain.comparison import Comparison, Pair
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.buffers import GLOBAL
from simtrain.memory.report import MemoryReport
from simtrain.scenario import Scenario, check_scenario
from simtrain.simulation import checked_profile, simulate, simulate_layer
from simtrain.strict_yaml import Document, Positions

HeldOut = TypeVar("HeldOut", LayerRecord, IterationRecord)
_LABELS = "name", "strategy", "what"
"""Labels of a pair; `what` is forward, backward, iteration or peak."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Predictions of a profile compared with one folder of measurements; no part is empty.

    `num_fitted` counts the records left out because a fit may have used them.
    """

    profile: str
    device: str
    parts: Sequence[Comparison]
    num_fitted: int
    warnings: Sequence[str]

    @property
    def ok(self) -> bool:
        """True if every part is within its limits."""
        return all(part.ok for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "profile": self.profile,
            "device": self.device,
            "parts": {part.title: _part_json(part) for part in self.parts},
            "num_fitted": self.num_fitted,
            "warnings": list(self.warnings),
            "ok": self.ok,
        }


def validate_profile(
    profile: HardwareProfile, header: Header, records: Iterable[Measurement], limits: Limits
) -> Validation:
    """Compare a profile's predictions with the records that no fit uses.

    Raises:
        InputError: there are none, or a scenario is illegal or larger than the profile's cluster.
    """
    records = list(records)
    held_out = [each for each in records if isinstance(each, LayerRecord) and each.held_out]
    iterations = [each for each in records if isinstance(each, IterationRecord)]
    if not held_out and not iterations:
        raise InputError.of(
            "E731",
            "nothing that was measured here was held out of the fit",
            fix="measure whole, without --only: python -m calibrate measure --out DIR",
            reason=f"{len(records)} records, none of them a held-out layer or an iteration",
        )
    layers, trained = _priced(held_out, profile), _priced(iterations, profile)
    if not layers and not trained:
        layers, trained = held_out, iterations  # whose error says what the profile lacks
    passes = [row for record in layers for row in _layer_rows(profile, record)]
    found = [row for record in trained for row in _iteration_rows(profile, record)]
    times, peaks = ([r for r in found if r.labels[-1] == what] for what in ("iteration", "peak"))
    parts = (
        Comparison("layers", "s", passes, limits.layers_mean, limits.layers_worst),
        Comparison("iterations", "s", times, None, limits.iterations_worst),
        Comparison("memory", "bytes", peaks, None, limits.memory_worst),
    )
    return Validation(
        profile.name,
        header.device,
        [part for part in parts if part.rows],
        len(records) - len(held_out) - len(iterations),
        _warnings(profile, header, len(held_out) - len(layers), len(iterations) - len(trained)),
    )


def _part_json(part: Comparison) -> dict[str, Any]:
    """Plain data, in seconds or bytes."""
    numbers = "measured", "predicted", "error"
    rows = [
        dict(zip(_LABELS, row.labels, strict=True)) | {name: getattr(row, name) for name in numbers}
        for row in part.rows
    ]
    return {
        "unit": part.unit,
        "rows": rows,
        "mean_abs_error": part.mean_abs_error,
        "max_abs_error": part.max_abs_error,
        "bias": part.bias,
        "mean_limit": part.mean_threshold,
        "worst_limit": part.max_threshold,
        "ok": part.ok,
    }


def _layer_rows(profile: HardwareProfile, record: LayerRecord) -> Iterator[Pair]:
    scenario = _scenario(record.scenario)
    passes = simulate_layer(scenario, checked_profile(scenario, profile))
    measured = record.forward, record.backward
    for what, time, predicted in zip(("forward", "backward"), measured, passes, strict=True):
        yield _row(scenario, what, time.median_s, predicted.duration_s)


def _iteration_rows(profile: HardwareProfile, record: IterationRecord) -> Iterator[Pair]:
    scenario = _scenario(record.scenario)
    result = simulate(scenario, profile)
    yield _row(scenario, "iteration", record.time.median_s, result.iteration_time_s)
    if record.peak_bytes is not None:
        yield _row(scenario, "peak", record.peak_bytes, _tensor_bytes(result.memory))


def _scenario(data: dict[str, Any]) -> Scenario:
    scenario = Scenario.from_document(Document(data, Positions()))
    check_scenario(scenario)
    return scenario


def _tensor_bytes(memory: MemoryReport) -> int:
    """Peak of a rank's tensors, without the global memory buffer that the measured models lack."""
    return max(
        stage.peak_bytes - stage.allocator_bytes - stage.buffers_bytes.get(GLOBAL, 0)
        for stage in memory.stages
    )


def _row(scenario: Scenario, what: str, measured: float, predicted: float) -> Pair:
    model, split = scenario.model, scenario.parallelism
    size = f"{model.num_layers} x {model.hidden_size}, {scenario.batch.micro} x {model.seq_length}"
    size = f"Llama {size}" if model.normalization == "rms_norm" else size
    if model.experts is not None:
        size += f", {model.experts.num} experts"
    ranks = f", t={split.tensor} p={split.pipeline}" if scenario.num_gpus > 1 else ""
    if split.context > 1:
        ranks += f" c={split.context}"
    fused = ", fused" if scenario.attention_backend == "fused" else ""
    return Pair((size + ranks, scenario.strategy + fused, what), measured, predicted)


def _priced(records: list[HeldOut], profile: HardwareProfile) -> list[HeldOut]:
    """The records without those of fused attention if the profile has no such section."""
    return [
        record
        for record in records
        if profile.fused_attention or record.scenario.get("attention_backend") != "fused"
    ]


def _warnings(
    profile: HardwareProfile, header: Header, num_layers: int, num_iterations: int
) -> list[str]:
    """Warnings of another device, and of layers and iterations that the profile cannot price."""
    warnings = []
    if header.device not in profile.model_dump_json():
        where = f"{header.device}, where this was measured"
        warnings.append(f"no source of {profile.name} names {where}")
    for number, what in ((num_layers, "layers"), (num_iterations, "iterations")):
        if number:
            unpriced = f"{number} {what} with fused attention are left out"
            warnings.append(f"{unpriced}: {profile.name} has no fused_attention")
    return warnings
