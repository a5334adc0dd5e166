"""Errors of measured runs by kind, from which intervals of further predictions follow."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq

from simtrain.hardware.validated_on import (
    DataType,
    MeasuredRuns,
    Nodes,
    PairErrors,
    ValidatedOn,
)
from simtrain.studies.validation.result import ValidatedRun, Validation

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
    return ValidatedOn(version=2, summary=summary, measured_runs=runs)


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
    data = errors.model_dump(mode="json", exclude_none=True)
    for runs in (*data["measured_runs"], *filter(None, [data.get("other_software")])):
        runs["errors"] = _in_a_line(runs["errors"])
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()


def _in_a_line(values: list[float]) -> CommentedSeq:
    """Return a list that YAML has between brackets, without a line for each number."""
    sequence = CommentedSeq(values)
    sequence.fa.set_flow_style()
    return sequence


def _measured_runs(
    key: _Class,
    nodes: Nodes | None,
    rows: Sequence[ValidatedRun],
    source: str,
) -> MeasuredRuns:
    software, data_type, has_experts, is_hybrid = key
    gpus = sorted(int(row.settings["GPUs"]) for row in rows if row.settings)
    extrapolated = math.fsum(row.extrapolated or 0.0 for row in rows) / len(rows)
    return MeasuredRuns(
        runs=f"{data_type}: {gpus[0]:,} to {gpus[-1]:,} GPUs",
        errors=sorted(_digits(row.error) for row in rows),
        extrapolated=round(extrapolated, 3),
        software=software,
        data_types=[data_type],
        has_experts=has_experts,
        is_hybrid=is_hybrid,
        nodes=nodes,
        pairs=_pairs(rows),
        remark=_REMARK,
        source=source,
    )


def _digits(error: float | None) -> float:
    assert error is not None, "a class has errors"
    return max(round(error, 4), _LOWEST)


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
