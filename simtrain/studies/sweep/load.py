"""Load a sweep file into a plan, and report all of its errors with their positions."""

from __future__ import annotations

import json
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from simtrain.base.extras import require
from simtrain.base.file_kinds import SWEEP, load_kind
from simtrain.base.output_folder import as_path
from simtrain.base.resources import find_sweep, profile_sha256
from simtrain.base.strict_yaml import Positions, YamlDocument, data_of, parse_document, validate
from simtrain.errors import InputError, Problem, did_you_mean, wrong_type
from simtrain.studies.cost import PRICE_COLUMN
from simtrain.studies.sweep.axes import SweepAxis
from simtrain.studies.sweep.bases import base_documents, refuse_overridden_axes
from simtrain.studies.sweep.constraints import WORDS, constraints_of, removed_by
from simtrain.studies.sweep.fields import DERIVED, attributes_by_name
from simtrain.studies.sweep.load_axes import load_axes
from simtrain.studies.sweep.plan import (
    OBJECTIVES,
    REPORTABLE,
    REPORTED_BY_DEFAULT,
    SweepPlan,
    default_part_size,
)
from simtrain.studies.sweep.request import MANY_POINTS
from simtrain.studies.sweep.value_checks import check_values
from simtrain.studies.sweep.versions import versions

_MOST_POINTS = 10**9
# The first points are enough, unless constraints remove all of them.
_POINTS_PER_QUERY = 16


class SweepFile(BaseModel):
    """Schema of a sweep file; `base` and the values of `axes` are validated later."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    name: str | None = Field(default=None, examples=["interleave"])
    description: str | None = Field(default=None, examples=["What does interleaving buy?"])
    base: Any = Field(default=None, examples=["table5_175b_present"])
    constants: dict[str, float] = Field(default={}, examples=["{num_gpus: 64}"])
    axes: dict[str, Any] = Field(examples=["{batch.micro: [1, 2, 4]}"])
    constraints: list[str] = Field(default=[], examples=["[tensor * data == num_gpus]"])
    report: list[str] | None = Field(default=None, examples=["[iteration_time_s, mfu]"])
    objective: str = Field(default="tokens_per_s", examples=["mfu"])


def load_plan(
    sweep: str | pathlib.Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    part_size: int | None = None,
    max_points: int = MANY_POINTS,
) -> SweepPlan:
    """Load a sweep.

    Args:
        sweep: a sweep file, the name of a shipped sweep, or what such a file contains.
        overrides: overrides of the base scenarios, such as "model.seq_length=4096".
        part_size: points per part of the results; by default about a hundred parts.
        max_points: the largest grid that is accepted; 1e9 is the most in any case.

    Raises:
        InputError: all errors of the file, the overrides and the base scenarios; or pyarrow, whose
            version is part of the plan, is not installed.
    """
    require("a sweep", "pyarrow")
    document, default_name = _document(sweep)
    file = validate(SweepFile, document.data, document.positions)
    axes = load_axes(document)
    base, bases = base_documents(document, axes, overrides, file.name or default_name)
    refuse_overridden_axes(overrides, axes)
    num_points = _num_points(axes, document.positions, max_points)
    plan = SweepPlan(
        name=file.name or default_name,
        description=file.description,
        base=base,
        bases={name: {"name": name} | base.data for name, base in bases.items()},
        # The value as written, because pydantic converts 64 to 64.0.
        constants=document.data.get("constants", {}),
        axes=axes,
        constraints=tuple(file.constraints),
        report=_columns(file),
        objective=file.objective,
        profiles={},
        versions=versions(),
        part_size=part_size or default_part_size(num_points),
        overrides=tuple(overrides),
        places=tuple(
            document.positions.of_value(("constraints", number))
            for number in range(len(file.constraints))
        ),
    )
    _refuse(
        *_bad_expressions(plan, document.positions),
        *_bad_columns(plan, document.positions),
    )
    clusters, currencies = check_values(document, axes, base, bases)
    plan = replace(plan, profiles={name: profile_sha256(name) for name in clusters})
    if plan.objective == PRICE_COLUMN and len(currencies) > 1:
        _refuse(_several_currencies(currencies, document.positions))
    _check_that_some_point_is_left(plan, document.positions)
    return plan


def _document(sweep: str | pathlib.Path | Mapping[str, Any]) -> tuple[YamlDocument, str]:
    """Return the content of a sweep, and the name that it has if it does not say one."""
    if isinstance(sweep, Mapping):
        try:
            text = json.dumps(sweep, indent=2, default=_data_of)
        except (TypeError, ValueError) as error:
            fix = 'write what a sweep file contains: {"base": "gpt2_1_5b", "axes": {...}}'
            raise InputError.of("E114", f"the sweep is no plain data: {error}", fix=fix) from error
        return parse_document(text, "the sweep"), "sweep"
    path = find_sweep(as_path(sweep))
    return load_kind(path, SWEEP), path.stem


def _data_of(value: object) -> Any:
    """Return the fields of a scenario or of its section; refuse other objects."""
    if not isinstance(value, BaseModel):
        raise wrong_type(value, "plain value", "write numbers, text, lists, dicts or scenarios")
    return data_of(value, only_set=True)


def _columns(file: SweepFile) -> tuple[str, ...]:
    """Return the columns of the results. The objective that a file names is one of them."""
    columns = REPORTED_BY_DEFAULT if file.report is None else tuple(file.report)
    is_named = "objective" in file.model_fields_set and file.objective in OBJECTIVES
    return columns if not is_named or file.objective in columns else (*columns, file.objective)


def _refuse(*problems: Problem) -> None:
    if problems:
        raise InputError(problems)


def _num_points(axes: Sequence[SweepAxis], positions: Positions, max_points: int) -> int:
    num_points = math.prod(len(axis) for axis in axes)
    if num_points > min(max_points, _MOST_POINTS):
        most = f"{max_points:,}" if max_points < _MOST_POINTS else f"{_MOST_POINTS:.0e}"
        size = f"{num_points:,}" if num_points <= _MOST_POINTS else f"{num_points:.3g}"
        message = f"the grid has {size} points, more than {most}"
        fix = "use fewer values, or vary several fields together on one axis"
        if num_points <= _MOST_POINTS:
            fix += f"; or simulate them all with --max-points {num_points}"
        _refuse(Problem("E807", message, positions.of_key(("axes",)), fix=fix))
    return num_points


def _bad_expressions(plan: SweepPlan, positions: Positions) -> list[Problem]:
    """List constants that are not allowed or not used, then constraints that cannot be read."""
    used: set[str] = set()
    unreadable: list[Problem] = []
    for constraint in constraints_of(plan):
        used |= constraint.names
        try:
            constraint.check()
        except InputError as error:
            used |= plan.constants.keys()  # which of them it would use is unknown
            unreadable += error.problems
    bad_constants = []
    # SQL ignores case.
    known = (*plan.constants, *WORDS, *attributes_by_name().keys() - {*DERIVED})
    for name in plan.constants:
        message, fix = "", "give it a name of its own: max_gpus"
        if not name.isidentifier():
            message = f'"{name}" cannot be the name of a constant'
        elif [*map(str.lower, known)].count(name.lower()) > 1:
            message = f"the constant {name} has a name that constraints know already"
        elif name not in used:
            message = f"the constant {name} is used by no constraint"
            fix = "use it, or leave it out"
        if message:
            place = positions.of_key(("constants", name))
            bad_constants.append(Problem("E808", message, place, fix=fix))
    return [*bad_constants, *unreadable]


def _bad_columns(plan: SweepPlan, positions: Positions) -> Iterator[Problem]:
    for number, name in enumerate(plan.report):
        place = positions.of_value(("report", number))
        if name not in REPORTABLE:
            fix = f"write some of {', '.join(REPORTABLE)}"
            yield Problem("E809", f'"{name}" is not a column of the results', place, fix=fix)
        elif name in plan.report[:number]:
            yield Problem("E809", f"{name} is reported twice", place, fix="keep one of the two")
    if plan.objective not in OBJECTIVES:
        message = f'"{plan.objective}" is not an objective'
        question = did_you_mean(plan.objective, OBJECTIVES)
        fix = f"{question}Write one of {', '.join(OBJECTIVES)}"
        yield Problem("E809", message, positions.of_value(("objective",)), fix=fix)


def _several_currencies(currencies: Sequence[str], positions: Positions) -> Problem:
    message = f"the objective compares prices in several currencies: {', '.join(currencies)}"
    fix = "write another objective, such as gpu_hours_per_1e9_tokens"
    reason = "simtrain knows no exchange rates"
    return Problem("E809", message, positions.of_value(("objective",)), reason, fix)


def _check_that_some_point_is_left(plan: SweepPlan, positions: Positions) -> None:
    removed: Counter[int] = Counter()
    for first in range(0, plan.num_points, _POINTS_PER_QUERY):
        indices = range(first, min(first + _POINTS_PER_QUERY, plan.num_points))
        removed_here = removed_by(plan, {index: plan.scenario(index) for index in indices})
        if len(removed_here) < len(indices):
            return
        removed.update(removed_here.values())
    counts = (
        f'"{plan.constraints[constraint]}" removed {removed[constraint]}'
        for constraint in sorted(removed)
    )
    message = f"none of the {plan.num_points} points of the grid satisfies all constraints"
    fix = "relax a constraint, or change the values of an axis"
    place = positions.of_key(("constraints",))
    _refuse(Problem("E814", message, place, ", ".join(counts), fix))
