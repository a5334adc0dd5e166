"""Changes of a scenario, policies of recompute among them."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from simtrain.base.strict_yaml import as_scalar
from simtrain.base.strict_yaml.validation import annotation_of
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.memory_rules import absent_modules
from simtrain.scenario.section import DEFAULT_MODULES, MEANT_BY_A_WORD, MODULES, Module

ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Change:
    """Fields of a scenario and their new values, which change together.

    Args:
        values: the new values by the fields' dotted names, as for `Scenario.replace`.
    """

    values: Mapping[str, Any]

    def __or__(self, other: Change) -> Change:
        return Change({**self.values, **other.values})

    @property
    def options(self) -> str:
        """The change as options of the command line, quoted for a shell."""
        settings = (quote(setting_in_words(*setting)) for setting in self.values.items())
        return " ".join(f"--set {setting}" for setting in settings)

    def applied_to(self, scenario: Scenario) -> Scenario:
        """Return the changed scenario.

        Raises:
            InputError: a field or a value does not exist.
        """
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
    inner: Any = scenario
    for part in field.split("."):
        names = {
            of.serialization_alias or name: name for name, of in type(inner).model_fields.items()
        }
        inner = getattr(inner, names.get(part, part))
    return inner


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


def first_layers(number: int) -> RecomputePolicy:
    """Return the policy that recomputes this number of layers of each chunk in full."""
    return RecomputePolicy(strategy="full", method="block", num_layers=number)


def last_resorts(scenario: Scenario) -> Iterator[RecomputePolicy]:
    """Yield policies that save less than one input per layer, by longer units."""
    if scenario.model.mtp_num_layers:
        return  # Rule E345 refuses longer units.
    sizes = scenario.chunk_sizes
    # Of lengths with equal numbers of units, the shortest recomputes the fewest layers at once.
    shortest = {
        tuple(-(-layers // length) for layers in sizes): length
        for length in range(max(sizes), 1, -1)
    }
    for length in shortest.values():
        yield RecomputePolicy(strategy="full", num_layers=length)


def policy_words(policy: RecomputePolicy) -> str:
    """Describe a policy, without the microbatches that it keeps."""
    layers = f"{policy.num_layers} layer{'s' * (policy.num_layers > 1)}"
    details = {
        f"modules {', '.join(policy.modules)}": policy.modules != DEFAULT_MODULES,
        f"the first {layers} of each chunk": policy.method == "block",
        f"saving {', '.join(policy.saved_ops)}": policy.strategy == "ops",
        f"units of {layers}": policy.method == "uniform" and policy.num_layers > 1,
    }
    return ", ".join([policy.strategy, *(words for words, holds in details.items() if holds)])


def _present_modules(scenario: Scenario) -> list[Module]:
    absent = absent_modules(scenario)
    return [module for module in MODULES if module not in absent]
