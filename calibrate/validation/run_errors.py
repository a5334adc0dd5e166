"""Errors of a validation's iterations, from which later intervals of its profile follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrate.validation.profile import ProfileValidation
from simtrain.base.output_folder import write_text
from simtrain.base.resources import find_profile, list_profiles
from simtrain.hardware.evidence import MeasuredRuns, RunKind, ValidatedOn, validated_on
from simtrain.studies.validation import errors_text
from simtrain.units import counted

_REMARK = "no fit used them: simtrain calibrate validate compared them with the profile"


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
    groups: dict[tuple[object, ...], list[tuple[RunKind, float]]] = {}
    for kind, error in validation.iterations:
        alike = kind.software, kind.data_type, kind.has_experts, kind.is_hybrid, kind.nodes
        groups.setdefault(alike, []).append((kind, error))
    added = [_measured_runs(rows, validation.device, source) for rows in groups.values()]
    if before is None:
        number = counted(len(validation.iterations), "measured iteration")
        return ValidatedOn(
            version=2, summary=f"{number} on {validation.device}.", measured_runs=added
        )
    others = [group for group in before.measured_runs if group.source != source]
    return before.model_copy(update={"measured_runs": [*others, *added]})


def _measured_runs(rows: Sequence[tuple[RunKind, float]], device: str, source: str) -> MeasuredRuns:
    kind = rows[0][0]
    return MeasuredRuns(
        runs=f"{kind.data_type}: small models on {device}",
        errors=sorted(round(error, 4) for _, error in rows),
        software=kind.software,
        data_types=[kind.data_type],
        has_experts=kind.has_experts,
        is_hybrid=kind.is_hybrid,
        nodes=kind.nodes,
        seen="blind",
        remark=_REMARK,
        source=source,
    )
