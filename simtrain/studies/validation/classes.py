"""Errors of measured runs by kind, from which intervals of further predictions follow."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np
from ruamel.yaml import YAML

from simtrain.hardware.validated_on import (
    DataType,
    MeasuredRuns,
    Nodes,
    PairErrors,
    Quantiles,
    ValidatedOn,
)
from simtrain.studies.validation.result import Errors, ValidatedRun, Validation

_FEWEST_RUNS, _FEWEST_PAIRS = 20, 20
_Class = tuple[str, DataType, bool, bool]
"""Software stack, data type, and whether the models have experts and are hybrid."""
_LOWEST = -0.9999
"""A prediction is above 0: its error above -1, also when it is rounded."""
_REMARK = "say here whether the runs were seen before a number was chosen"


def error_classes(validation: Validation, source: str) -> ValidatedOn:
    """Return the errors of the runs by software stack, data type, kind of model and nodes.

    Runs on one node and on several are one class if either are few.

    Args:
        validation: predictions of measured runs.
        source: where the measurements are.
    """
    groups: dict[_Class, list[ValidatedRun]] = {}
    for row in validation.timed:
        assert row.kind, "only timed rows have classes"
        kind = row.kind
        key = kind.software, kind.data_type, kind.has_experts, kind.is_hybrid
        groups.setdefault(key, []).append(row)
    runs = [
        _measured_runs(key, nodes, rows, source)
        for key, group in sorted(groups.items())
        for nodes, rows in _by_nodes(group)
    ]
    summary = f"{len(validation.timed)} measured iterations, compared by simtrain validate."
    return ValidatedOn(version=1, summary=summary, measured_runs=runs)


def _by_nodes(rows: Sequence[ValidatedRun]) -> list[tuple[Nodes | None, Sequence[ValidatedRun]]]:
    parts: dict[Nodes, list[ValidatedRun]] = {}
    for row in rows:
        assert row.kind, "only timed rows have classes"
        parts.setdefault(row.kind.nodes, []).append(row)
    if len(parts) > 1 and min(map(len, parts.values())) < _FEWEST_RUNS:
        return [(None, rows)]
    return [*parts.items()]


def errors_text(errors: ValidatedOn) -> str:
    """Return errors as a file of `hw_profiles/validated_on`."""
    yaml = YAML()
    yaml.width = 100
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(errors.model_dump(mode="json", exclude_none=True), text)
    return text.getvalue()


def _measured_runs(
    key: _Class,
    nodes: Nodes | None,
    rows: Sequence[ValidatedRun],
    source: str,
) -> MeasuredRuns:
    software, data_type, has_experts, is_hybrid = key
    errors = Errors([row.error for row in rows if row.error is not None])
    gpus = sorted(int(row.settings["GPUs"]) for row in rows if row.settings)
    return MeasuredRuns(
        runs=f"{data_type}: {gpus[0]:,} to {gpus[-1]:,} GPUs",
        num_runs=errors.num,
        mean_error=_digits(errors.mean_abs_error),
        worst_error=_digits(errors.worst_error),
        software=software,
        data_types=[data_type],
        has_experts=has_experts,
        is_hybrid=is_hybrid,
        nodes=nodes,
        quantiles=_quantiles(rows),
        pairs=_pairs(rows),
        coverage=_coverage(rows),
        remark=_REMARK,
        source=source,
    )


def _digits(error: float | None) -> float:
    assert error is not None, "a class has errors"
    return max(round(error, 4), _LOWEST)


def _quantiles(rows: Sequence[ValidatedRun]) -> Quantiles | None:
    """Return the order statistics between which further errors are; None if there are few runs."""
    if len(rows) < _FEWEST_RUNS:
        return None
    errors = _normalised(rows)
    names = "p5", "p25", "p75", "p95"
    return Quantiles(
        **{name: _digits(value) for name, value in zip(names, _ends(errors), strict=True)}
    )


def _normalised(rows: Sequence[ValidatedRun]) -> list[float]:
    """Return the errors without what intervals are wider for, in ascending order."""
    return sorted((row.error or 0.0) / (1 + (row.extrapolated or 0.0)) for row in rows)


def _ends(errors: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the ends of the 90 % and the 50 % interval of errors in ascending order."""
    last = len(errors) - 1

    def low(share: float) -> float:
        return errors[max(math.floor(share * (len(errors) + 1)) - 1, 0)]

    def high(share: float) -> float:
        return errors[min(math.ceil(share * (len(errors) + 1)) - 1, last)]

    return low(0.05), low(0.25), high(0.75), high(0.95)


def _coverage(rows: Sequence[ValidatedRun]) -> float | None:
    """Return the share of runs inside the 90 % interval that the other runs set."""
    if len(rows) < _FEWEST_RUNS:
        return None
    errors = _normalised(rows)
    num_inside = 0
    for place, error in enumerate(errors):
        low, *_, high = _ends([*errors[:place], *errors[place + 1 :]])
        num_inside += low <= error <= high
    return round(num_inside / len(errors), 3)


def _pairs(rows: Sequence[ValidatedRun]) -> PairErrors | None:
    """Return how far off ratios of two runs of one model are; None if there are few pairs."""
    models: dict[Hashable, list[float]] = {}
    for row in rows:
        models.setdefault(row.ranked_with, []).append(math.log1p(row.error or 0.0))
    ratios = [
        math.expm1(abs(one_error - other_error))
        for errors in models.values()
        for one_error, other_error in itertools.combinations(errors, 2)
    ]
    if len(ratios) < _FEWEST_PAIRS:
        return None
    p50, p90 = (_digits(float(value)) for value in np.quantile(ratios, (0.5, 0.9)))
    return PairErrors(num_pairs=len(ratios), p50=p50, p90=p90)
