"""Run a pydantic model over loaded data and tell each of its errors in the user's terms."""

from __future__ import annotations

import difflib
import keyword
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeVar

from pydantic import BaseModel, ValidationError

from simtrain.errors import InputError, Location, Problem
from simtrain.strict_yaml.document import Path, Positions, dotted
from simtrain.strict_yaml.model_fields import example, legal_keys

Model = TypeVar("Model", bound=BaseModel)

# What pydantic reports only because of something that it has already reported.
_CONSEQUENCES = frozenset({"default_factory_not_called"})
_MAX_SHOWN = 40
_TYPE_NAMES: dict[type, str] = {
    type(None): "",
    dict: "",
    list: "",
    bool: "the boolean",
    int: "the integer",
    float: "the decimal number",
    str: "the text",
}


class FieldError(ValueError):
    """What a check of a whole section raises about one field; `path` leads there from it.

    `fix` says what to write instead.
    """

    def __init__(self, path: Path, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.fix = fix


def validate(model_class: type[Model], data: Mapping[str, Any], positions: Positions) -> Model:
    """The data as a `model_class`, its fields named as in files.

    Raises:
        InputError: with one located problem for each thing that the model refuses.
    """
    try:
        return model_class.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        # Pydantic's own error would say the same in other words.
        raise input_error(error, model_class, data, positions) from None


def input_error(
    error: ValidationError,
    model_class: type[BaseModel],
    data: Mapping[str, Any],
    positions: Positions,
    home: str = "the file",
) -> InputError:
    """Pydantic's error with one located problem for each thing that the model refuses.

    `home` names what holds the data: the file, or the class whose constructor was called.
    """
    problems = [
        _explain(
            _Refusal(
                model_class=model_class,
                positions=positions,
                path=_written_path(data, detail["loc"]),
                kind=detail["type"],
                value=detail["input"],
                message=detail["msg"],
                context=detail.get("ctx", {}),
                top=home,
            )
        )
        for detail in error.errors()
        if detail["type"] not in _CONSEQUENCES
    ]
    return InputError(_in_reading_order(problems))


def _in_reading_order(problems: list[Problem]) -> list[Problem]:
    """The problems from the top of the file to its end; those without a line come first."""

    def place(problem: Problem) -> tuple[int, int]:
        location = problem.location or Location("")
        return location.line or 0, location.column or 0

    return sorted(problems, key=place)


def as_written(value: Any) -> str:
    """A value the way YAML writes it: true, .nan, "text"; cut where it is long."""
    match value:
        case None:
            text = "null (nothing written)"
        case dict():
            text = "a section"
        case list():
            text = "a list"
        case bool():
            text = str(value).lower()
        case float() if not math.isfinite(value):
            text = str(value).replace("nan", ".nan").replace("inf", ".inf")
        case str():
            text = f'"{value}"'
        case _:
            text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _written_path(data: Any, loc: Path) -> Path:
    """`loc` without the names of union members, which pydantic adds and nobody wrote."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        is_last = index == len(loc) - 1
        if isinstance(data, Mapping) and (part in data or is_last):
            path.append(part)
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            path.append(part)
            data = data[part] if part < len(data) else None
    return tuple(path)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """One error of pydantic: the value at `path` that `model_class` refuses, and why."""

    model_class: type[BaseModel]
    positions: Positions
    path: Path
    kind: str
    value: Any
    message: str
    context: Mapping[str, Any]
    top: str

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def home(self) -> str:
        return dotted(self.path[:-1]) or self.top

    @property
    def is_argument(self) -> bool:
        """Whether the field is an argument of the model's constructor."""
        return self.home == self.model_class.__name__

    def spelled(self, name: str) -> str:
        """A field's name as it is written here: a keyword of Python ends in an underscore."""
        return f"{name}_" if self.is_argument and keyword.iskeyword(name) else name

    @property
    def says(self) -> str:
        return f"{self.name} is {as_written(self.value)}"

    @property
    def example(self) -> str | None:
        return example(self.model_class, self.path)

    def at_value(self, code: str, message: str, fix: str | None) -> Problem:
        return Problem(code, message, self.positions.of_value(self.path), fix=fix)

    def at_key(self, code: str, message: str, fix: str | None) -> Problem:
        return Problem(code, message, self.positions.of_key(self.path), fix=fix)


def _explain(refusal: _Refusal) -> Problem:
    explain = _EXPLANATIONS.get(refusal.kind, _explain_otherwise)
    return explain(refusal)


def _explain_unknown_key(refusal: _Refusal) -> Problem:
    key = str(refusal.path[-1])
    legal = [refusal.spelled(name) for name in legal_keys(refusal.model_class, refusal.path[:-1])]
    similar = difflib.get_close_matches(key, legal, n=1)
    question = f'did you mean "{similar[0]}"? ' if similar else ""
    fix = f"{question}The keys of {refusal.home} are {', '.join(legal)}"
    return refusal.at_key("E201", f'unknown key "{key}" in {refusal.home}', fix)


def _explain_missing(refusal: _Refusal) -> Problem:
    name, shown = refusal.path[-1], refusal.example
    if isinstance(name, int):
        listed = refusal.positions.of_value(refusal.path[:-1])
        fix = f"{refusal.home} needs {name + 1} values or more"
        return Problem("E202", f"{refusal.name} is missing", listed, fix=fix)
    if refusal.is_argument:
        name = refusal.spelled(name)
        fix = f"write {refusal.home}({name}={shown or '...'}, ...)"
        return refusal.at_key("E202", f"{name} is missing", fix)
    line = f"{name}: {shown}" if shown else f"{name}"
    place = "at the top level" if len(refusal.path) == 1 else f"under {refusal.home}"
    return refusal.at_key("E202", f"{refusal.name} is missing", f"add {line} {place}")


def _expecting(
    expected: str, hint: Callable[[Any], str | None] = lambda value: None
) -> Callable[[_Refusal], Problem]:
    """How to explain that a value is of another type; `hint` says what was surely meant."""

    def explain(refusal: _Refusal) -> Problem:
        kind = type(refusal.value)
        kind_name = _TYPE_NAMES.get(kind, f"the {kind.__name__}")
        found = f"{kind_name} {as_written(refusal.value)}".strip()
        message = f"{refusal.name} must be {expected}, not {found}"
        meant = hint(refusal.value) or refusal.example
        return refusal.at_value("E203", message, f"write {meant or expected}")

    return explain


def _integer_hint(value: Any) -> str | None:
    """8 for "8" and 8.0, int(8) for an integer of NumPy."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return f"int({value})"
    if isinstance(value, bool) or not isinstance(value, (str, float)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return f"{int(number)}, an integer without quotes or point" if number.is_integer() else None


def _bool_hint(value: Any) -> str | None:
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}
    word = meant.get(str(value).lower())
    return f"{word} (in YAML 1.2, {value} is text)" if word else None


def _text_hint(value: Any) -> str | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'"{value}", in quotes' if is_number else None


def _explain_limit(refusal: _Refusal) -> Problem:
    limit = refusal.message.removeprefix("Input should be ")
    number = limit if limit.startswith("a ") else f"a number {limit}"
    fix = f"write {number}" + (f", such as {refusal.example}" if refusal.example else "")
    return refusal.at_value("E204", f"{refusal.says}, but must be {limit}", fix)


def _explain_choice(refusal: _Refusal) -> Problem:
    choices = refusal.context["expected"].replace("'", "").replace(" or ", ", ")
    similar = difflib.get_close_matches(str(refusal.value), choices.split(", "), n=1)
    fix = f"did you mean {similar[0]}?" if similar else f"write one of {choices}"
    return refusal.at_value("E205", f"{refusal.says}, but must be one of {choices}", fix)


def _explain_value_error(refusal: _Refusal) -> Problem:
    error = refusal.context["error"]
    if isinstance(error, FieldError):
        refusal = replace(refusal, path=(*refusal.path, *error.path))
    return refusal.at_value("E206", f"{refusal.name}: {error}", getattr(error, "fix", None))


def _explain_otherwise(refusal: _Refusal) -> Problem:
    return refusal.at_value("E207", f"{refusal.says}: {refusal.message}", refusal.example)


_EXPLANATIONS: dict[str, Callable[[_Refusal], Problem]] = {
    "extra_forbidden": _explain_unknown_key,
    "missing": _explain_missing,
    "int_type": _expecting("an integer", _integer_hint),
    "float_type": _expecting("a number"),
    "bool_type": _expecting("true or false", _bool_hint),
    "string_type": _expecting("text", _text_hint),
    "list_type": _expecting("a list"),
    "model_type": _expecting('a section with "name: value" lines'),
    "dict_type": _expecting('a section with "name: value" lines'),
    "greater_than": _explain_limit,
    "greater_than_equal": _explain_limit,
    "less_than": _explain_limit,
    "less_than_equal": _explain_limit,
    "finite_number": _explain_limit,
    "literal_error": _explain_choice,
    "value_error": _explain_value_error,
}
