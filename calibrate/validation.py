"""Validates a profile on held-out measurements: layers, whole iterations, and their memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from calibrate.records.schema import Header, IterationRecord, LayerRecord, Measurement
from calibrate.tables import comparison_table
from simtrain.base.accuracy import ErrorTable, Pair
from simtrain.base.output_folder import write_text
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.resources import find_profile, list_profiles
from simtrain.base.strict_yaml import Positions, YamlDocument
from simtrain.errors import InputError
from simtrain.hardware.evidence import ValidatedOn, validated_on
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.buffers import GLOBAL, WORKSPACES
from simtrain.iteration.report.result import run_kind
from simtrain.scenario import Scenario, check_scenario
from simtrain.studies.simulation import checked_profile, simulate, simulate_layer
from simtrain.studies.validation import ValidatedRun, Validation, error_classes, errors_text
from simtrain.views.view import Paragraphs, Part, View, verdict

HeldOut = TypeVar("HeldOut", LayerRecord, IterationRecord)
_LABELS = "name", "strategy", "what"
"""Labels of a pair; `what` is forward, backward, iteration or peak."""
_NINE_OF_TEN = 0.9
_COUNTED = {"layers": "layer passes", "iterations": "iterations", "memory": "memory peaks"}


_TIMES_MEAN, _MEMORY_WORST = 0.25, 0.03
"""Largest mean |error| of all times, however wide the interval is, and largest of a peak."""
_UNSTATED = {"layers": (0.03, 0.08), "iterations": (None, 0.05)}
"""Largest mean and worst |error| of times if a profile does not say what to expect."""


@dataclass(frozen=True, slots=True)
class ProfileValidation(PlainData):
    """Predictions of a profile compared with one folder of measurements; no part is empty.

    Args:
        profile: its name.
        device: the device that was measured.
        parts: the pairs of numbers.
        num_fitted: records left out because a fit may have used them.
        warnings: why the comparison may be unfair.
        uncertainty: relative error that the profile says nine of ten times stay below.
        iterations: the iterations beside their predictions.
    """

    json_fields: ClassVar = keys(
        """profile device parts=compared num_fitted uncertainty num_within_uncertainty
        times_mean_abs_error=times_mean times_mean_limit=times_limit warnings ok"""
    )

    profile: str
    device: str
    parts: Sequence[ErrorTable]
    num_fitted: int
    warnings: Sequence[str]
    uncertainty: float | None = None
    iterations: Sequence[ValidatedRun] = ()

    @property
    def times_limit(self) -> float:
        return _TIMES_MEAN

    @property
    def num_within(self) -> tuple[int, int]:
        limit = self.uncertainty or 0.0
        return sum(abs(error) <= limit for error in self._time_errors), len(self._time_errors)

    @property
    def times_mean(self) -> float:
        return math.fsum(map(abs, self._time_errors)) / len(self._time_errors)

    @property
    def _time_errors(self) -> list[float]:
        return [row.error for part in self.parts if part.unit == "s" for row in part.rows]

    @property
    def ok(self) -> bool:
        return not self.misses

    @property
    def misses(self) -> list[str]:
        missed = [part.title for part in self.parts if not part.ok]
        within, total = self.num_within
        if self.uncertainty is not None and within < _NINE_OF_TEN * total:
            missed.append("more than one of ten times")
        if self.times_mean > _TIMES_MEAN:
            missed.append("mean of all times")
        return missed

    @property
    def compared(self) -> dict[str, Any]:
        return {
            part.title: {
                "unit": part.unit,
                "rows": [
                    dict(zip(_LABELS, row.labels, strict=True))
                    | {"measured": row.measured, "predicted": row.predicted, "error": row.error}
                    for row in part.rows
                ],
                "mean_abs_error": part.mean_abs_error,
                "max_abs_error": part.max_abs_error,
                "bias": part.bias,
                "mean_limit": part.mean_threshold,
                "worst_limit": part.max_threshold,
                "ok": part.ok,
            }
            for part in self.parts
        }

    @property
    def num_within_uncertainty(self) -> int | None:
        return None if self.uncertainty is None else self.num_within[0]

    def view(self) -> View:
        parts: list[Part] = []
        for part in self.parts:
            mean = part.mean_threshold
            at_most = "" if mean is None else f" (at most {mean:.1%})"
            worst = f"worst {part.max_abs_error:.2%}"
            if part.max_threshold is not None:
                worst += f" (at most {part.max_threshold:.1%})"
            errors = f"mean |error| {part.mean_abs_error:.2%}{at_most}, {worst}"
            title = f"{part.title}: {errors}, bias {part.bias:+.2%}"
            parts.append(
                comparison_table(part.title, title, part, "scenario", "strategy", "time of")
            )
        said = [
            f"{self.num_fitted} records left out: a fit may have used them, "
            "and a profile is validated on other records only"
        ]
        if self.uncertainty is not None:
            within, total = self.num_within
            says = f"the profile says that 90% of times are within {self.uncertainty:.0%}"
            said.append(f"{says}: {within} of {total} are ({within / total:.0%})")
        limit = f"at most {_TIMES_MEAN:.0%}"
        said.append(f"mean |error| of all times: {self.times_mean:.1%} ({limit})")
        counts = ", ".join(f"{len(part.rows)} {_COUNTED[part.title]}" for part in self.parts)
        missed = self.misses
        end = f"; above the limit: {', '.join(missed)}" if missed else ""
        words = f"{self.profile} on {self.device}: {counts}{end}"
        return View([*parts, Paragraphs(said, style=None), verdict(not missed, words)])


def validate_profile(
    profile: HardwareProfile, header: Header, records: Iterable[Measurement]
) -> ProfileValidation:
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
            fix="measure whole, without --only: simtrain calibrate measure -o DIR",
            reason=f"{len(records)} records, none of them a held-out layer or an iteration",
        )
    warnings = []
    if header.device not in profile.model_dump_json():
        where = f"{header.device}, where this was measured"
        warnings.append(f"no source of {profile.name} names {where}")
    layers, trained = _priced(held_out, profile), _priced(iterations, profile)
    left_out = {"layers": len(held_out) - len(layers), "iterations": len(iterations) - len(trained)}
    for what, number in left_out.items():
        if number:
            unpriced = f"{number} {what} with fused attention are left out"
            warnings.append(f"{unpriced}: {profile.name} has no fused_attention")
    if not layers and not trained:
        layers, trained = held_out, iterations  # whose error says what the profile lacks
    priced: list[LayerRecord | IterationRecord] = [*layers, *trained]
    rows = [row for record in priced for row in _rows(profile, record)]
    parts = []
    says = profile.uncertainty.value if profile.uncertainty else None
    limits = ({} if says is not None else _UNSTATED) | {"memory": (None, _MEMORY_WORST)}
    for title, unit, whats in (
        ("layers", "s", ("forward", "backward")),
        ("iterations", "s", ("iteration",)),
        ("memory", "bytes", ("peak",)),
    ):
        if chosen := [row for row in rows if row.labels[-1] in whats]:
            parts.append(ErrorTable(title, unit, chosen, *limits.get(title, (None, None))))
    num_fitted = len(records) - len(held_out) - len(iterations)
    return ProfileValidation(
        profile.name,
        header.device,
        parts,
        num_fitted,
        warnings,
        uncertainty=says,
        iterations=[_validated_run(profile, record) for record in trained],
    )


def _validated_run(profile: HardwareProfile, record: IterationRecord) -> ValidatedRun:
    scenario, (name, _) = _scenario(record)
    result = simulate(scenario, profile)
    return ValidatedRun(
        *(name, name, "", 0),
        iteration_time_s=record.time.median_s,
        simulated_s=result.iteration_time_s,
        settings={"GPUs": scenario.num_gpus},
        kind=run_kind(scenario, profile),
        shape=result.shape,
    )


def _rows(profile: HardwareProfile, record: LayerRecord | IterationRecord) -> Iterator[Pair]:
    """The passes of a layer; or the time of an iteration, and its peak if it was measured."""
    scenario, labels = _scenario(record)
    if isinstance(record, LayerRecord):
        passes = simulate_layer(scenario, checked_profile(scenario, profile))
        measured = {"forward": record.forward, "backward": record.backward}
        for (what, time), predicted in zip(measured.items(), passes, strict=True):
            yield Pair((*labels, what), time.median_s, predicted.duration_s)
        return
    result = simulate(scenario, profile)
    yield Pair((*labels, "iteration"), record.time.median_s, result.iteration_time_s)
    if record.peak_bytes is not None:
        # Tensors only, without the global memory buffer that the measured models lack, and without
        # workspaces, which exist before the measurement begins.
        tensor_bytes = max(
            stage.peak_bytes
            - stage.allocator_bytes
            - sum(stage.buffers_bytes.get(name, 0) for name in (GLOBAL, WORKSPACES))
            for stage in result.memory.stages
        )
        yield Pair((*labels, "peak"), record.peak_bytes, tensor_bytes)


def _scenario(record: LayerRecord | IterationRecord) -> tuple[Scenario, tuple[str, str]]:
    """The checked scenario of a record, and its name and strategy in words."""
    scenario = Scenario.from_document(YamlDocument(record.scenario, Positions()))
    check_scenario(scenario)
    model, split = scenario.model, scenario.parallelism
    name = f"{model.num_layers} x {model.hidden_size}, {scenario.batch.micro} x {model.seq_length}"
    name = f"Llama {name}" if model.normalization == "rms_norm" else name
    if model.experts is not None:
        name += f", {model.experts.num} experts"
    if scenario.num_gpus > 1:
        name += f", t={split.tensor} p={split.pipeline}"
    fused = ", fused" if scenario.attention_backend == "fused" else ""
    return scenario, (name, scenario.strategy + fused)


def _priced(records: list[HeldOut], profile: HardwareProfile) -> list[HeldOut]:
    """The records without those of fused attention if the profile has no such section."""
    return [
        record
        for record in records
        if profile.fused_attention or record.scenario.get("attention_backend") != "fused"
    ]


_REMARK = "no fit used them: simtrain validate compared them with the profile"


def write_errors(validation: ProfileValidation, profile: str, source: str) -> Path | None:
    """Write the errors of the iterations to `validated_on/` beside the profile.

    Errors of other measured runs stay in the file; those of an earlier validation with the same
    measurements are replaced.

    Args:
        validation: the comparison.
        profile: file of the profile. The files of shipped profiles stay as they are.
        source: the measurements, as the file names them.

    Returns:
        The file; None if no iteration was measured, or the profile is a shipped one.

    Raises:
        InputError: the file cannot be written, or an earlier one is bad.
    """
    path = find_profile(profile)
    is_shipped = path.stem in list_profiles() and path.samefile(find_profile(path.stem))
    if is_shipped or not validation.iterations:
        return None
    file = path.parent / "validated_on" / f"{path.stem}.yaml"
    file.parent.mkdir(exist_ok=True)
    errors = with_errors(validated_on(profile), validation, source)
    write_text(file, errors_text(errors), "the errors")
    return file


def with_errors(
    before: ValidatedOn | None, validation: ProfileValidation, source: str
) -> ValidatedOn:
    """Return a profile's errors with those of a validation's iterations, by kind."""
    errors = error_classes(Validation.of(validation.profile, validation.iterations), source)
    said = {"seen": "blind", "remark": _REMARK}
    added = [
        group.model_copy(update=said | {"runs": f"small models on {validation.device}"})
        for group in errors.measured_runs
    ]
    others = [each for each in before.measured_runs if each.source != source] if before else []
    return (before or errors).model_copy(update={"measured_runs": [*others, *added]})
