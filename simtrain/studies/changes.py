"""Changes of a scenario: fields, numbers of GPUs (`--gpus` of every command), recompute."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Iterator, Mapping
from shlex import quote
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from simtrain.base.plain_data import attribute
from simtrain.base.strict_yaml import as_scalar
from simtrain.base.strict_yaml.validation import annotation_of
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError, Location
from simtrain.hardware.load import profile_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import RecomputePolicy, Scenario, check_scenario
from simtrain.scenario.memory_rules import absent_modules
from simtrain.scenario.rule import python_path
from simtrain.scenario.section import MEANT_BY_A_WORD, MODULES, Module
from simtrain.studies.on_machine import first_layers

ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Change:
    """Fields of a scenario by dotted names, and their new values, which change together."""

    values: Mapping[str, Any]

    @property
    def options(self) -> str:
        """The change as options of the command line, quoted for a shell."""
        settings = (quote(setting_in_words(*setting)) for setting in self.values.items())
        return " ".join(f"--set {setting}" for setting in settings)

    def applied_to(self, scenario: Scenario) -> Scenario:
        """Return the changed scenario; a field or a value that does not exist is an error."""
        return scenario.replace(self.values)


def setting_in_words(field: str, value: object) -> str:
    """Format a field and its value as an argument of --set."""
    return f"{field}={_written(value)}"


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if not isinstance(value, RecomputePolicy):
        return as_scalar(value)
    details = value.model_dump(exclude_defaults=True, exclude={"strategy"})
    spelled = {"strategy": value.strategy} | details
    words = (f"{name}: {_written(detail)}" for name, detail in spelled.items())
    return f"{{{', '.join(words)}}}" if details else value.strategy


def changes_of(scenario: Scenario, values_of: Mapping[str, Iterable[Any]]) -> Iterator[Change]:
    """Yield a change for each of some values by field that the scenario does not have."""
    for field, values in values_of.items():
        for value in dict.fromkeys(values):
            if not _has(scenario, field, value):
                yield Change({field: value})


def value_at(scenario: Scenario, field: str) -> Any:
    """Return a scenario's value of a field, such as that of "batch.global"."""
    return attribute(scenario, python_path(field))


def _has(scenario: Scenario, field: str, value: Any) -> bool:
    """Whether a field has a value; a section with a word for it may have more than the word says.

    `recompute: full` is no change of a scenario that recomputes the first layers in full.
    """
    is_word = field in MEANT_BY_A_WORD and isinstance(value, str)
    place = f"{field}.{MEANT_BY_A_WORD[field]}" if is_word else field
    return bool(value_at(scenario, place) == value)


def all_values(field: str) -> tuple[Any, ...]:
    """Return the values of a flag or a choice, such as "overlap.userbuffers"; () for others."""
    return tuple(_members(annotation_of(Scenario, tuple(field.split(".")))))


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the values of a type that is a flag or a choice, also inside a union."""
    origin = get_origin(annotation)
    if annotation is bool:
        yield from (False, True)
    elif origin is Literal:
        yield from get_args(annotation)
    elif origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)


# ------------------------------------------------------------------------- GPUs


Subject = TypeVar("Subject", Scenario, Scenario | Result)


def with_gpus(subject: Subject, gpus: int | None, scale_batch: bool = False) -> Subject | Scenario:
    """Return a scenario on this number of GPUs; errors are those of `changes_to`."""
    base = subject.scenario if isinstance(subject, Result) else subject
    changes = {} if gpus is None else changes_to(base, gpus, scale_batch)
    return base.replace(changes) if changes else subject


def with_scaled_batch(scenario: Scenario, gpus: int) -> Scenario:
    """Return a scenario whose global batch grows by the factor to this number of GPUs, or E886."""
    now = scenario.batch.global_
    batch, rest = divmod(now * gpus, scenario.num_gpus)
    if rest:
        step = scenario.num_gpus // math.gcd(now, scenario.num_gpus)
        raise InputError.of(
            "E886",
            f"a global batch of {now} on {scenario.num_gpus} GPUs has no whole size on {gpus}",
            Location(f"--scale-batch --gpus {gpus}"),
            f"write --gpus as a multiple of {step}, or --set batch.global without --scale-batch",
            "a batch has whole sequences",
        )
    return scenario.replace({"batch.global": batch})


def changes_to(base: Scenario, gpus: int, scale_batch: bool) -> dict[str, object]:
    """Return fields that give a scenario as many replicas as the GPUs hold, and nodes for them.

    The global batch stays; with `scale_batch` it grows by the factor of the GPUs. Numbers that are
    no multiple of the GPUs of a replica are E886.
    """
    if gpus == base.num_gpus:
        return {}
    of_replica, cluster = base.num_gpus // base.parallelism.data, profile_of(base).cluster
    place = Location(f"--gpus {gpus}")
    if type(gpus) is not int or gpus < 1 or gpus % of_replica:
        message = f"{gpus!r} is not a multiple of the {of_replica} GPUs of a replica"
        reason = "a training has whole replicas of its model"
        nearest = of_replica * max(round(gpus / of_replica), 1)
        raise InputError.of("E886", message, place, f"write --gpus {nearest}", reason)
    replicas = gpus // of_replica
    fields: dict[str, object] = {"parallelism.data": replicas}
    if scale_batch:
        fields["batch.global"] = base.batch.global_ * replicas // base.parallelism.data
    if gpus > cluster.num_gpus:
        fields["hardware.cluster.num_nodes"] = -(-gpus // cluster.gpus_per_node.value)
    try:
        check_scenario(base.replace(fields))
    except InputError as error:
        raise InputError([replace(error.problems[0], location=place)]) from error
    return fields


# ------------------------------------------------------------------------- recompute


POLICIES = tuple(RecomputePolicy(strategy=name) for name in ("none", "selective", "full"))
"""One policy of each kind."""


def policies_near(scenario: Scenario) -> Iterator[RecomputePolicy]:
    """Yield each kind, other modules and numbers of layers, and other numbers of microbatches."""
    yield from POLICIES
    now, present = scenario.recompute, _present_modules(scenario)
    modules = {*now.modules} if now.strategy == "selective" else set()
    selections = [modules ^ {module} for module in present]
    if now.strategy != "selective":
        selections.append({*present} - {"moe", "mlp"})
    for selection in filter(None, selections):
        ordered = tuple(module for module in MODULES if module in selection)
        yield RecomputePolicy(strategy="selective", modules=ordered)
    yield RecomputePolicy(strategy="ops")
    largest = max(scenario.chunk_sizes)
    for number in sorted({largest // 4, largest // 2, 3 * largest // 4, largest - 1} - {0, -1}):
        yield first_layers(number)
    if now.strategy != "none" and scenario.parallelism.pipeline > 1:
        stages, kept = scenario.parallelism.pipeline, now.keep_microbatches
        assert isinstance(kept, int), "auto is not refined"
        for number in sorted({1, kept + 1, 2 * kept, stages // 2, stages} - {0, kept}):
            yield now.model_copy(update={"keep_microbatches": number})


def _present_modules(scenario: Scenario) -> list[Module]:
    absent = absent_modules(scenario)
    return [module for module in MODULES if module not in absent]
