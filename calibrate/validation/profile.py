"""A profile held against what it was not fitted on: layers, whole iterations, and their memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from calibrate.records.schema import Header, IterationRecord, LayerRecord, Measurement
from calibrate.validation.limits import Limits
from simtrain.errors import InputError, Problem
from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.buffers import GLOBAL
from simtrain.memory.report import MemoryReport
from simtrain.scenario import Scenario, check_scenario
from simtrain.simulation import checked_profile, simulate, simulate_layer
from simtrain.strict_yaml import Document, Positions

HeldOut = TypeVar("HeldOut", LayerRecord, IterationRecord)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured number beside the predicted one, both in seconds or in bytes.

    `what` is forward, backward, iteration or peak.
    """

    name: str
    strategy: str
    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error: predicted / measured - 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Part:
    """What is judged together; `mean_limit` None is no limit but that of the worst."""

    title: str
    unit: str
    rows: Sequence[Row]
    worst_limit: float
    mean_limit: float | None = None

    @property
    def mean_abs_error(self) -> float:
        """Mean of |error|."""
        return math.fsum(abs(row.error) for row in self.rows) / len(self.rows)

    @property
    def max_abs_error(self) -> float:
        """Largest |error|."""
        return max(abs(row.error) for row in self.rows)

    @property
    def bias(self) -> float:
        """Mean error with its sign: above 0, the profile is too slow, or takes too much."""
        return math.fsum(row.error for row in self.rows) / len(self.rows)

    @property
    def ok(self) -> bool:
        """Whether every error, and their mean, is within its limit."""
        mean_ok = self.mean_limit is None or self.mean_abs_error <= self.mean_limit
        return mean_ok and self.max_abs_error <= self.worst_limit

    def to_json(self) -> dict[str, Any]:
        """Plain data, in seconds or bytes."""
        return {
            "unit": self.unit,
            "rows": [{**asdict(row), "error": row.error} for row in self.rows],
            "mean_abs_error": self.mean_abs_error,
            "max_abs_error": self.max_abs_error,
            "bias": self.bias,
            "mean_limit": self.mean_limit,
            "worst_limit": self.worst_limit,
            "ok": self.ok,
        }


@dataclass(frozen=True, slots=True)
class Validation:
    """A profile's predictions beside one folder's measurements; no part is empty.

    `num_fitted` records a fit may have used, so that they judge nothing.
    """

    profile: str
    device: str
    parts: Sequence[Part]
    num_fitted: int
    warnings: Sequence[str]

    @property
    def ok(self) -> bool:
        """Whether every part is."""
        return all(part.ok for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "profile": self.profile,
            "device": self.device,
            "parts": {part.title: part.to_json() for part in self.parts},
            "num_fitted": self.num_fitted,
            "warnings": list(self.warnings),
            "ok": self.ok,
        }


def validate_profile(
    profile: HardwareProfile, header: Header, records: Iterable[Measurement], limits: Limits
) -> Validation:
    """Hold a profile against the records that no fit uses.

    Raises:
        InputError: there is none, or a scenario is illegal or larger than the profile's cluster.
    """
    records = list(records)
    held_out = [each for each in records if isinstance(each, LayerRecord) and each.held_out]
    iterations = [each for each in records if isinstance(each, IterationRecord)]
    if not held_out and not iterations:
        raise InputError([_nothing_held_out(len(records))])
    layers, trained = _priced(held_out, profile), _priced(iterations, profile)
    if not layers and not trained:
        layers, trained = held_out, iterations  # whose error says what the profile lacks
    of_layers = [row for record in layers for row in _layer_rows(profile, record)]
    found = [row for record in trained for row in _iteration_rows(profile, record)]
    times = [row for row in found if row.what == "iteration"]
    peaks = [row for row in found if row.what == "peak"]
    parts = (
        Part("layers", "s", of_layers, limits.layers_worst, limits.layers_mean),
        Part("iterations", "s", times, limits.iterations_worst),
        Part("memory", "bytes", peaks, limits.memory_worst),
    )
    return Validation(
        profile.name,
        header.device,
        [part for part in parts if part.rows],
        len(records) - len(held_out) - len(iterations),
        _warnings(profile, header, len(held_out) - len(layers), len(iterations) - len(trained)),
    )


def _layer_rows(profile: HardwareProfile, record: LayerRecord) -> Iterator[Row]:
    scenario = _scenario(record.scenario)
    passes = simulate_layer(scenario, checked_profile(scenario, profile))
    measured = record.forward, record.backward
    for what, time, predicted in zip(("forward", "backward"), measured, passes, strict=True):
        yield _row(scenario, what, time.median_s, predicted.duration_s)


def _iteration_rows(profile: HardwareProfile, record: IterationRecord) -> Iterator[Row]:
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
    """The most that a rank's tensors take: what is measured has no global memory buffer."""
    return max(
        stage.peak_bytes - stage.allocator_bytes - stage.buffers_bytes.get(GLOBAL, 0)
        for stage in memory.stages
    )


def _row(scenario: Scenario, what: str, measured: float, predicted: float) -> Row:
    model, split = scenario.model, scenario.parallelism
    size = f"{model.num_layers} x {model.hidden_size}, {scenario.batch.micro} x {model.seq_length}"
    size = f"Llama {size}" if model.normalization == "rms_norm" else size
    if model.experts is not None:
        size += f", {model.experts.num} experts"
    ranks = f", t={split.tensor} p={split.pipeline}" if scenario.num_gpus > 1 else ""
    if split.context > 1:
        ranks += f" c={split.context}"
    fused = ", fused" if scenario.attention_backend == "fused" else ""
    return Row(size + ranks, scenario.strategy + fused, what, measured, predicted)


def _priced(records: list[HeldOut], profile: HardwareProfile) -> list[HeldOut]:
    """Without those with fused attention if the profile has none."""
    return [
        record
        for record in records
        if profile.fused_attention or record.scenario.get("attention_backend") != "fused"
    ]


def _warnings(
    profile: HardwareProfile, header: Header, num_layers: int, num_iterations: int
) -> list[str]:
    """What is doubtful or missing: another device; layers and iterations that have no duration."""
    warnings = []
    if header.device not in profile.model_dump_json():
        where = f"{header.device}, where this was measured"
        warnings.append(f"no source of {profile.name} names {where}")
    for number, what in ((num_layers, "layers"), (num_iterations, "iterations")):
        if number:
            unpriced = f"{number} {what} with fused attention are not judged"
            warnings.append(f"{unpriced}: {profile.name} has no fused_attention")
    return warnings


def _nothing_held_out(num_records: int) -> Problem:
    return Problem(
        "E731",
        "nothing that was measured here was held out of the fit",
        reason=f"{num_records} records, none of them a held-out layer or an iteration",
        fix="measure whole, without --only: python -m calibrate measure --out DIR",
    )
