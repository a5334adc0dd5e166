"""Settings of a scenario that change nothing in its iteration, which `simtrain run` names.

Each is left out and the iteration is evaluated again: no list says where a setting matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simtrain.base.strict_yaml import leaves
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import Scenario
from simtrain.studies.changes.change import Change, changes_of
from simtrain.studies.changes.trial import try_change
from simtrain.studies.choose import is_open
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.machines import Machines

_SECTIONS = ("placement", "memory", "overlap")
_FIELDS: dict[str, Any] = {"model.attention_window": None, "model.attention_dropout": 0}
"""Fields that can be idle in legal scenarios, with what is like leaving them out."""
_FOR_OTHER_ANSWERS = ("running_costs", "reliability", "variation")


def settings_without_effect(scenario: Scenario, machine: Machine) -> dict[str, str]:
    """Each setting that changes neither time nor memory, and a remark on it.

    Looked at are entries of `hardware`, and what differs from its default in the sections
    placement, memory and overlap. Recompute that is open is compared as none.

    Args:
        scenario: the scenario.
        machine: the machine on which it was simulated, whose durations serve again.
    """
    settled = scenario.replace({"recompute": "none"}) if is_open(scenario) else scenario
    machines = Machines.starting_with(settled, machine)
    evaluator = Evaluator(
        allow_oom=True, breakdowns=False, engine=machine.engine, machines=machines
    )
    remarks: dict[str, str] = {}
    now: Evaluation | None = None
    for name, change in _without_each(settled):
        now = now or evaluator.evaluate(settled)
        trial = try_change(change, evaluator.changing(settled))
        # A setting without which the scenario is illegal has its effect.
        if trial.is_legal and _outcome(trial.evaluation) == _outcome(now):
            remarks[name] = _remark(name, is_utilization=_mfu(trial.evaluation) != _mfu(now))
    return remarks


def _without_each(scenario: Scenario) -> Iterator[tuple[str, Change]]:
    """Yield the name of each setting, and the change that leaves it out."""
    for path, _ in leaves(scenario.hardware):
        if path and path[0] not in _FOR_OTHER_ANSWERS:
            hardware = _without(scenario.hardware, [str(part) for part in path])
            yield ".".join(("hardware", *map(str, path))), Change({"hardware": hardware})
    defaults = dict(_FIELDS)
    for section in _SECTIONS:
        for name, field in type(getattr(scenario, section)).model_fields.items():
            defaults[f"{section}.{name}"] = field.default
    written = {
        name: [default]
        for name, default in defaults.items()
        if _is_written(scenario, *name.split("."))
    }
    for change in changes_of(scenario, written):
        (name,) = change.values
        yield name, change


def _is_written(scenario: Scenario, section: str, field: str) -> bool:
    return field in getattr(scenario, section).model_fields_set


def _without(data: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    first, *rest = path
    kept = {name: value for name, value in data.items() if name != first}
    if rest and (inside := _without(data[first], rest)):
        kept[first] = inside
    return kept


def _outcome(evaluation: Evaluation) -> tuple[object, ...]:
    time_s = evaluation.run.iteration_time_s if evaluation.run else None
    return time_s, evaluation.peak_bytes, evaluation.capacity_bytes


def _mfu(evaluation: Evaluation) -> float | None:
    return evaluation.run.mfu if evaluation.run else None


def _remark(name: str, *, is_utilization: bool) -> str:
    if is_utilization:
        return f"{name} changes MFU and HFU here, but neither time nor memory."
    return f"{name} has no effect here: without it time and memory are the same."
