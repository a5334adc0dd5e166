"""A draft of a scenario from Megatron-LM's arguments: how their values are read, and refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from simtrain.base.importer import ImportRequest
from simtrain.base.strict_yaml import FieldError
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError, Location, Problem
from simtrain.guests.importing.draft import Draft, missing_fields
from simtrain.guests.importing.megatron.arguments import (
    KNOWN,
    MAPPED,
    MISSING_OF_SCRIPTS,
    OTHER_MODELS,
    SPELLINGS,
    TABLE,
)
from simtrain.guests.importing.megatron.source import TEXT, MegatronSource, unknown_value
from simtrain.guests.importing.settings import Setting
from simtrain.guests.importing.table import MappedWord
from simtrain.scenario.model import Model, checked_pattern

Number = TypeVar("Number", int, float)


class MegatronDraft(Draft):
    """A scenario during its import.

    An argument whose value is unknown or cannot be converted is a problem with its position, and
    counts as not given: the problems of all arguments are one error (`refuse_problems`).

    Its attributes `tensor`, `pipeline` and `context` are sizes of groups. `layers` is the number of
    layers, if it is given. `pattern` is that of a hybrid model, or None. `problems` has a problem
    for each argument that has one, by its name.
    """

    def __init__(self, source: MegatronSource, request: ImportRequest) -> None:
        where = "" if source.file == TEXT else f" in {source.file}"
        super().__init__(
            request,
            file=source.file,
            what=f"{source.tool}'s arguments{where}",
            default=f"default of {source.tool}",
            table=source.table,
            settings=source.arguments,
        )
        _refuse_other_models(source)
        self.pattern = _read_pattern(source)  # Its errors are clearer than unknown arguments.
        self.assumptions += source.assumptions
        self.hides_arguments = source.hides
        self.machine = source.machine
        self.problems: dict[str, Problem] = {str(n): p for n, p in enumerate(source.problems)}
        known: Collection[str] = KNOWN
        if not source.is_printed:
            known = {f"--{name.replace('_', '-')}" for name in KNOWN | SPELLINGS.keys()}
        if problem := self.unknown_settings(known):
            self.report("unknown", problem)
        self.tool = source.tool
        self.launch, self.is_printed = source.launch, source.is_printed
        self.is_config = source.table is not TABLE
        self.tensor, self.pipeline, self.context = (
            self.override(f"parallelism.{axis}") or self.integer(name) or 1
            for axis, name in _GROUPS.items()
        )
        self.layers = self.integer("num_layers")
        for name in _PATTERNS:
            self.known(name)
        if self.pattern is not None:
            self.layers = self.layers or len(self.pattern.letters)

    def given(self, name: str) -> Setting | None:
        # A log also prints arguments that are not set.
        argument = self.settings.get(name)
        return None if argument is None or argument.value == "None" else argument

    def report(self, name: str, problem: Problem) -> None:
        """Note the problem of an argument, which counts as not given from here on."""
        self.problems.setdefault(name, problem)

    def word_of(self, name: str) -> str:
        return name if self.is_config else f"--{super().word_of(name).replace('_', '-')}"

    def refuse_problems(self, others: Iterable[Problem] = ()) -> None:
        """Raise one error with the problems of all arguments, and fields that are missing.

        Args:
            others: problems that were found before.
        """
        problems = [*others, *self.problems.values()]
        if not problems:
            return
        if not self.hides_arguments:  # what is missing may be among them
            # A problem ends the import of its section: nested sections can be unfinished.
            missing = missing_fields(dict.fromkeys(self.data.get("model", {})), Model, "model.")
            wrong_fields = {MAPPED[name].field for name in self.problems if name in MAPPED}
            problems += self.missing(
                name
                for name in missing
                if name not in wrong_fields and self.override_text(name) is None
            )
        raise InputError(sorted(problems, key=_position))

    def known(self, name: str) -> Setting | None:
        """Return an argument if it is set; report it if the source does not define its value."""
        argument = self.given(name)
        if argument is None or name in self.problems:
            return None
        if not argument.unknown:
            return argument
        word, remedy, effect = MAPPED.get(name), "", ""
        if word:
            if (text := self.override_text(word.field)) is not None:
                is_ours = bool(word.values) or isinstance(word.default, bool)
                return None if is_ours else replace(argument, value=text, unknown=None)
            remedy, effect = f"--set {word.field}=...", f"it sets {word.field}"
        message = f"{argument.spelled} is {argument.unknown}"
        problem = unknown_value(message, argument, argument.place, remedy, effect)
        if self.is_config:
            message = f"{message}, {argument.reason}"
            fix = f"{f'add {remedy}; or ' if remedy else ''}write its value in the file, or "
            fix += "print the config and import that"
            problem = replace(problem, message=message, fix=fix)
        self.report(name, problem)
        return None

    def _number(self, name: str, kind: Callable[[str], Number], words: str) -> Number | None:
        argument = self.known(name)
        try:
            return None if argument is None else converted(argument, kind, words)
        except InputError as error:
            self.report(name, *error.problems)
            return None

    def integer(self, name: str) -> int | None:
        """Return the value of an integer argument; None if it is not set, or is no integer."""
        return self._number(name, int, "an integer")

    def decimal(self, name: str) -> float | None:
        """Return the value of a numeric argument; None if it is not set, or is no number."""
        return self._number(name, float, "a number")

    def flag(self, name: str) -> bool:
        """Return whether a flag is on; a flag that sets no field is off by default."""
        argument = self.known(name)
        if argument is not None and argument.value not in ("True", "False"):
            self.report(name, *wrong(argument, "takes no value").problems)
            argument = None
        if argument is None:
            return name in MAPPED and MAPPED[name].default is True
        return bool(argument.value == "True")

    def choice(self, name: str, default: str | None = None) -> Any:
        """Return our value for one of the values in the table.

        Args:
            name: the argument.
            default: Megatron-LM's value without the argument, if other arguments determine it.
        """
        argument, word = self.known(name), MAPPED[name]
        # Logs print members of enumerations, such as AttnBackend.auto.
        value: str = argument.value.rpartition(".")[2] if argument else ""
        if argument and value not in word.values:
            says = f"must be one of {', '.join(word.values)}"
            self.report(name, *wrong(argument, says).problems)
        return word.values.get(value, word.values.get(default or word.default or ""))

    def value(self, name: str) -> Any:
        match self.table.mapped[name]:
            case MappedWord(values=values) if values:
                return self.choice(name)
            case MappedWord(default=bool(), inverted=inverted):
                return self.flag(name) is not inverted
            case MappedWord(default=float(default)):
                return default if (number := self.decimal(name)) is None else number
            case MappedWord(default=None):
                return self.integer(name)
            case MappedWord(default=default):
                return self.integer(name) or default

    @property
    def is_local(self) -> bool:
        implementation = self.known("transformer_impl")
        return implementation is not None and implementation.value == "local"


_GROUPS = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
}


def _position(problem: Problem) -> tuple[int, int]:
    place = problem.location or Location("")
    return place.line or sys.maxsize, place.column or 0


def listed(argument: Setting) -> list[str]:
    """Return the values of an argument with several values, which a log prints as a list."""
    words: str = argument.value.translate(dict.fromkeys(map(ord, "[]'\","), " "))
    return words.split()


def converted(argument: Setting, kind: Callable[[str], Number], words: str) -> Number:
    """Convert the value of an argument to a number.

    Raises:
        InputError: the value is not a number of this kind.
    """
    try:
        return kind(argument.value)
    except ValueError:
        raise wrong(argument, f"is not {words}") from None


def wrong(argument: Setting, says: str) -> InputError:
    """Return the error about the value of an argument."""
    word = MAPPED.get(argument.name)
    fix = "correct the argument" + (f", which sets {word.field}" if word else "")
    return InputError.of("E872", f"{argument.words} {says}", argument.place, fix)


# ------------------------------------------------------------------ hybrid models and other models

_PATTERNS = "hybrid_layer_pattern", "hybrid_override_pattern"


@dataclass(frozen=True, slots=True)
class HybridPattern:
    """The pattern of a hybrid model.

    Args:
        argument: the argument that has the pattern.
        stages: the letters of the layers of each chunk of a pipeline; a single one if the pattern
            does not say them.
    """

    argument: Setting
    stages: tuple[str, ...]

    @property
    def letters(self) -> str:
        return "".join(self.stages)


def _read_pattern(source: MegatronSource) -> HybridPattern | None:
    """Return the pattern of a hybrid model; None for other models, or if it is unknown.

    Raises:
        InputError: a layer is of a kind that is not simulated, or there is no pattern (E877).
    """
    arguments = {name: each for name, each in source.arguments.items() if each.value != "None"}
    argument = next((arguments[name] for name in _PATTERNS if name in arguments), None)
    if argument and argument.unknown:
        return None
    if argument:
        letters, _, predictions = argument.value.strip("\"'").partition("/")
        if predictions.replace("/", ""):
            part = "token prediction after a hybrid model"
            raise missing_part(f"{argument.words} trains", argument.place, part)
        try:
            checked_pattern(letters.replace("|", ""))
        except FieldError as error:
            raise missing_part(f"{argument.words} trains", argument.place, str(error)) from None
        return HybridPattern(argument, tuple(letters.split("|")))
    # A flag, the specification of layers or the training script says that a model is hybrid.
    for setting in (arguments.get("is_hybrid_model"), arguments.get("spec"), source.script):
        name = setting.value.rpartition("/")[2].lower() if setting else ""
        if setting and (name == "true" or re.search("mamba|hybrid", name)):
            part = "layers without a pattern: write --hybrid-layer-pattern and their letters"
            raise missing_part(f"{setting.spelled} trains", setting.place, part)
    return None


def _refuse_other_models(source: MegatronSource) -> None:
    """Check that the training script and the arguments describe a GPT model.

    Raises:
        InputError: the model has a part that simtrain does not have.
    """
    if source.script:
        words = re.split(r"[^a-z0-9]+", source.script.value.rpartition("/")[2].lower())
        parts = (part for part, names in MISSING_OF_SCRIPTS.items() if {*names.split()} & {*words})
        if part := next(parts, None):
            raise missing_part(f"{source.script.value} trains", source.script.place, part)
    for name, effect in OTHER_MODELS.items():
        setting = source.arguments.get(name)
        if setting and effect.applies(setting.value):
            raise missing_part(f"{setting.words} trains", setting.place, effect.text)
    positions = source.arguments.get("position_embedding_type")
    if positions and positions.value in ("alibi", "relative"):
        part = "a bias by relative position in attention"
        raise missing_part(f"{positions.words} trains", positions.place, part)


def missing_part(what: str, place: Location | None, part: str) -> InputError:
    """Return the error about a source of a model with a part that simtrain does not have."""
    return InputError.of(
        "E877",
        f"{what} a model with a part that simtrain does not have: {part}",
        place,
        "import a model of transformer layers only",
        "a GPT without this part would give a wrong time and memory",
    )
