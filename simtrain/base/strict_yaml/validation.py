"""Validate loaded data with a pydantic model and explain each error in the user's terms.

At the end: fields and examples of models, looked up by path.
"""

from __future__ import annotations

import difflib
import functools
import keyword
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Annotated, Any, SupportsIndex, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from simtrain.base.entry import ValueOf
from simtrain.base.strict_yaml.reading import Path, Positions, as_scalar, dotted
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError, Location, Problem, did_you_mean

Model = TypeVar("Model", bound=BaseModel)

# Errors that pydantic reports only as a consequence of another error.
_CONSEQUENCES = frozenset({"default_factory_not_called"})
_MAX_SHOWN = 40
_MOST_PROBLEMS = 50
"""Further errors are counted: each is compared with all names of its section."""
_MOST_NAMES = 3
_FILE = "the file"
_WORDS: dict[type, str] = {type(None): "null (nothing written)", dict: "a section", list: "a list"}
_TYPES = {bool: "boolean", int: "integer", float: "decimal number", str: "text"}


class FieldError(ValueError):
    """An error about one field, raised by a validator of a whole section.

    Args:
        path: the field, relative to the section.
        message: what is wrong.
        fix: what to write instead.
    """

    def __init__(self, path: Path, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.fix = fix


def validate(
    model_class: type[Model],
    data: Mapping[str, Any],
    positions: Positions,
    spell: Callable[[Path], str] = dotted,
) -> Model:
    """Validate data, with field names as in files, and return a `model_class`.

    `spell` returns the name of a path in errors.

    Raises:
        InputError: one located problem per error.
    """
    try:
        return model_class.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        # Chaining pydantic's error would repeat the same in other words.
        raise input_error(error, model_class, data, positions, spell=spell) from None


def input_error(
    error: ValidationError,
    model_class: type[BaseModel],
    data: Mapping[str, Any],
    positions: Positions,
    home: str = _FILE,
    spell: Callable[[Path], str] = dotted,
) -> InputError:
    """Convert pydantic's error to an InputError with one located problem per error.

    `home` names the origin of the data: the file, or the class whose constructor was called.
    """
    problems: list[Problem] = []
    for detail in error.errors(include_url=False):
        if (kind := detail["type"]) not in _CONSEQUENCES:
            if len(problems) == _MOST_PROBLEMS:
                left = error.error_count() - _MOST_PROBLEMS
                problems[-1] = replace(
                    problems[-1], message=f"{problems[-1].message}; {left} more errors"
                )
                break
            path = _written_path(data, detail["loc"])
            refusal = _Refusal(model_class, positions, home, path, detail, spell)
            problems.append(_EXPLANATIONS.get(kind, _explain_otherwise)(refusal))
    return InputError(sorted(problems, key=_line_and_column))


def _line_and_column(problem: Problem) -> tuple[int, int]:
    location = problem.location or Location("")
    return location.line or 0, location.column or 0


def as_written(value: Any) -> str:
    """Format a value as YAML: true, .nan, "text"; long values are truncated."""
    if isinstance(value, float) and not math.isfinite(value):
        text = str(value).replace("nan", ".nan").replace("inf", ".inf")
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        words = (words for kind, words in _WORDS.items() if isinstance(value, kind))
        text = next(words, as_scalar(value))
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _written_path(data: Any, loc: Path) -> Path:
    """Return `loc` without the names of union members, which pydantic inserts."""
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
    """One error of pydantic: `detail` about the value at `path` of a `model_class`."""

    model_class: type[BaseModel]
    positions: Positions
    top: str
    path: Path
    detail: Mapping[str, Any]
    spell: Callable[[Path], str]

    @property
    def name(self) -> str:
        return self.spell(self.path)

    @property
    def home(self) -> str:
        return self.spell(self.path[:-1]) or self.top

    @property
    def is_argument(self) -> bool:
        return self.home == self.model_class.__name__

    def in_full(self, key: str) -> str:
        section = self.spell(self.path[:-1])
        return key if self.is_argument or not section else f"{section}.{key}"

    def spelled(self, name: str) -> str:
        return f"{name}_" if self.is_argument and keyword.iskeyword(name) else name

    @property
    def says(self) -> str:
        return f"{self.name} is {as_written(self.detail['input'])}"

    @property
    def example(self) -> str | None:
        return example(self.model_class, self.path)

    def at_value(self, code: str, message: str, fix: str | None) -> Problem:
        return Problem(code, message, self.positions.of_value(self.path), fix=fix)

    def at_key(self, code: str, message: str, fix: str | None) -> Problem:
        return Problem(code, message, self.positions.of_key(self.path), fix=fix)


def _explain_unknown_key(refusal: _Refusal) -> Problem:
    key = str(refusal.path[-1])
    legal = [refusal.spelled(name) for name in legal_keys(refusal.model_class, refusal.path[:-1])]
    similar = difflib.get_close_matches(key, legal, n=1)
    elsewhere = names_of(refusal.model_class, key)
    if not 0 < len(elsewhere) <= _MOST_NAMES:
        elsewhere = tuple(map(refusal.in_full, similar))
    question = f"did you mean {' or '.join(elsewhere)}? " if elsewhere else ""
    of_section, whole = (other_names(refusal.model_class, path) for path in (refusal.path[:-1], ()))
    if instead := of_section.get(key) or whole.get(key):
        is_own = key in of_section and instead.split()[0].rstrip(",:") in legal
        verb = "" if instead.startswith("remove") else "write "
        question = f"{verb}{refusal.in_full(instead) if is_own else instead}. "
    where, keys = f"in {refusal.home}", f"The keys of {refusal.home}"
    if refusal.home == _FILE:  # also if an option of a command has the key
        where, keys = "at the top level", "The keys there"
    fix = f"{question}{keys} are {', '.join(legal)}"
    return refusal.at_key("E201", f'unknown key "{key}" {where}', fix)


def _explain_missing(refusal: _Refusal) -> Problem:
    name, shown = refusal.path[-1], refusal.example
    if isinstance(name, int):
        listed = refusal.positions.of_value(refusal.path[:-1])
        fix = f"{refusal.home} needs at least {name + 1} values"
        return Problem("E202", f"{refusal.name} is missing", listed, fix=fix)
    if refusal.is_argument:
        missing = refusal.spelled(name)
        fix = f"write {refusal.home}({missing}={shown or '...'}, ...)"
    else:
        missing = refusal.name
        place = "at the top level" if len(refusal.path) == 1 else f"under {refusal.home}"
        fix = f"add {name}{f': {shown}' if shown else ''} {place}"
    return refusal.at_key("E202", f"{missing} is missing", fix)


def _expecting(
    expected: str, hint: Callable[[Any], str | None] = lambda value: None
) -> Callable[[_Refusal], Problem]:
    """Return an explanation for values of the wrong type; `hint` suggests a value."""

    def explain(refusal: _Refusal) -> Problem:
        value = refusal.detail["input"]
        kind = type(value)
        the_type = "" if kind in _WORDS else f"the {_TYPES.get(kind, kind.__name__)} "
        value_text = the_type + as_written(value)
        message = f"{refusal.name} must be {expected}, not {value_text}"
        fix = hint(value) or _such_as(expected, refusal.example)
        return refusal.at_value("E203", message, f"write {fix}")

    return explain


def _such_as(expected: str, example: str | None) -> str:
    return f"{expected}, such as {example}" if example else expected


def _integer_hint(value: Any) -> str | None:
    """Suggest 8 for "8" and 8.0, and int(8) for a NumPy integer."""
    if isinstance(value, bool) or not isinstance(value, (str, float, SupportsIndex)):
        return None
    if isinstance(value, SupportsIndex):
        return f"int({value})"
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
    limit = refusal.detail["msg"].removeprefix("Input should be ")
    number = limit if limit.startswith("a ") else f"a number {limit}"
    fix = f"write {_such_as(number, refusal.example)}"
    return refusal.at_value("E204", f"{refusal.says}, but must be {limit}", fix)


def _explain_choice(refusal: _Refusal) -> Problem:
    choices = refusal.detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    value = as_scalar(refusal.detail["input"])
    fix = other_values(refusal.model_class, dotted(refusal.path)).get(value.lower())
    lower = {choice.lower(): choice for choice in choices.split(", ")}
    if similar := lower.get(value.lower()):
        fix = f"write {similar}"
    question = did_you_mean(value.lower(), choices.split(", ")).strip()
    fix = fix or question or f"write one of {choices}"
    return refusal.at_value("E205", f"{refusal.says}, but must be one of {choices}", fix)


def _explain_value_error(refusal: _Refusal) -> Problem:
    error = refusal.detail["ctx"]["error"]
    if isinstance(error, FieldError):
        refusal = replace(refusal, path=(*refusal.path, *error.path))
    return refusal.at_value("E206", f"{refusal.name}: {error}", getattr(error, "fix", None))


def _explain_otherwise(refusal: _Refusal) -> Problem:
    return refusal.at_value("E207", f"{refusal.says}: {refusal.detail['msg']}", refusal.example)


_LIMITS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number")
_EXPLANATIONS: dict[str, Callable[[_Refusal], Problem]] = {
    "extra_forbidden": _explain_unknown_key,
    "missing": _explain_missing,
    "int_type": _expecting("an integer", _integer_hint),
    "float_type": _expecting("a number"),
    "bool_type": _expecting("true or false", _bool_hint),
    "string_type": _expecting("text", _text_hint),
    **dict.fromkeys(("list_type", "tuple_type"), _expecting("a list")),
    **dict.fromkeys(("model_type", "dict_type"), _expecting('a section with "name: value" lines')),
    **dict.fromkeys(_LIMITS, _explain_limit),
    "literal_error": _explain_choice,
    "value_error": _explain_value_error,
}


# --------------------------------------------------------------------------- fields of models


def annotation_of(model_class: type[BaseModel], path: Path) -> Any:
    """Type annotation of the section or field at `path`."""
    return reduce(_annotation_inside, path, model_class)


def legal_keys(model_class: type[BaseModel], path: Path) -> list[str]:
    """Legal keys of the section at `path`."""
    return list(_fields(annotation_of(model_class, path)))


def other_names(model_class: type[BaseModel], path: Path) -> Mapping[str, str]:
    """Map other programs' names to ours for the section at `path`."""
    section = annotation_of(model_class, path)
    models = typing.get_args(section) or (section,)
    return {
        name: instead
        for model in models
        for name, instead in getattr(model, "other_names", dict)().items()
    }


def other_values(model_class: type[BaseModel], name: str) -> Mapping[str, str]:
    """Map other programs' values, in lower case, to remedies for the field with a dotted name."""
    values: Mapping[str, str] = getattr(model_class, "other_values", lambda _: {})(name)
    return values


def example(model_class: type[BaseModel], path: Path) -> str | None:
    """First example of the field at `path`, if it has one."""
    section = annotation_of(model_class, path[:-1])
    field = _fields(section).get(str(path[-1])) if path else None
    return str(field.examples[0]) if field and field.examples else None


def data_of(value: Any, *, only_set: bool = False) -> Any:
    """Convert a model to plain data with the field names of files.

    Args:
        value: a model, or any other value, which is returned unchanged.
        only_set: omit fields that were not set.

    Unlike `model_dump`, this keeps names and values that `model_copy` did not validate.
    """
    if not isinstance(value, BaseModel):
        return value
    fields, aliases = vars(value), _aliases(type(value))
    names = value.model_fields_set if only_set else fields
    return {
        aliases.get(name, name): data_of(inside, only_set=only_set)
        for name, inside in fields.items()
        if name in names
    }


@functools.cache
def _aliases(model_class: type[BaseModel]) -> dict[str, str]:
    fields = model_class.model_fields.items()
    return {name: field.serialization_alias or name for name, field in fields}


@functools.cache
def names_of(model_class: type[BaseModel], last: str) -> tuple[str, ...]:
    """Dotted names of all fields of a model whose last part is `last`."""
    return tuple(name for name in dotted_names(model_class) if name.rpartition(".")[2] == last)


def settable_names(model_class: type[BaseModel]) -> list[str]:
    """Dotted names of all fields of a model that are no sections themselves."""
    names = list(dotted_names(model_class))
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def dotted_names(annotation: Any) -> Iterator[str]:
    """Yield the dotted names of all fields of a model, sections included."""
    for name in _fields(annotation):
        yield name
        section = _annotation_inside(annotation, name)
        yield from (f"{name}.{inside}" for inside in dotted_names(section))


def _annotation_inside(annotation: Any, part: str | int) -> Any:
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    of_entry = [each for each in arguments if isinstance(each, ValueOf)]
    if part == "value" and of_entry:
        return of_entry[0].kind
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        annotations = (_annotation_inside(argument, part) for argument in arguments)
        return next((annotation for annotation in annotations if annotation is not None), None)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arguments[1]
    if isinstance(origin, type) and issubclass(origin, (list, tuple)):
        return arguments[0]
    field = _fields(annotation).get(str(part))
    if field is None:
        return None
    of_entry = [each for each in field.metadata if isinstance(each, ValueOf)]
    return Annotated[field.annotation, of_entry[0]] if of_entry else field.annotation


def _fields(annotation: Any) -> dict[str, FieldInfo]:
    """Fields of a model, or of all models of a union, by their names in files."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return {str(field.validation_alias or name): field for name, field in fields}
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        models = typing.get_args(annotation)
        return {name: field for model in models for name, field in _fields(model).items()}
    return {}
