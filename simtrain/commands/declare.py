"""Commands from functions and requests: names, types, defaults and help of options are said once.

A parameter of a command is an option, or a dataclass that stands for an option per field. Its help
is what the docstring of the function or dataclass says under `Args:`. `Annotated` adds what only a
command line has: another name, an argument, completion, or a text that is parsed (`Option`).

The request of a Python call gives its fields to a command in the same way (`Fields`), so both say
the same. The modules of requests are imported when help is printed: they import nothing slow.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import EnumType
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from simtrain.base.request import described_in
from simtrain.base.values import dataclass, field, is_dataclass

Source = Callable[..., Any]
"""A function or a dataclass: parameters with types and defaults, and a docstring about them."""
FIRST_OPTIONS = "first_options"


@dataclass(frozen=True, slots=True)
class Option:
    """Marks a parameter with what only a command line has.

    Args:
        names: such as "-o --output", of an argument "FILE"; by default the parameter's.
        help: replaces what the docstring says.
        metavar: how help names the value.
        complete: returns values, for completion.
        min, max: the range of a number.
        parse: returns the value of a text such as "0,1,63"; it gets the option's name for errors.
        is_repeated: `parse` gets the list of the texts of an option that may be repeated.
    """

    names: str = ""
    help: str = ""
    metavar: str = ""
    complete: Callable[[], Iterable[str]] | None = None
    min: float = -math.inf
    max: float = math.inf
    parse: Callable[[Any, str], Any] | None = None
    is_repeated: bool = False


class Argument(Option):
    """Marks a parameter that is written without a name."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Marks a parameter that has options for some fields of a dataclass.

    The command gets a value of the parameter's type: the dataclass itself, or a dict of the fields.

    Args:
        source: the dataclass, such as the request of a Python call.
        names: the fields, in the order of the options; by default all.
        forms: marks of fields, or types of those that a command line writes differently.
    """

    source: Source
    names: str = ""
    forms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CliOption:
    """An option or an argument of a command.

    Args:
        key: the name of the function's parameter.
        names: such as "-o" and "--output", or of a flag "--wide" and "--no-wide"; an argument's is
            "SCENARIO".
        type: of one value: text, a number, a path, a choice (`Literal` or `StrEnum`) or a flag.
        is_list: several values may be written.
        default: its value, if it is not written; `inspect.Parameter.empty` if it must be.
        help: what it means.
        mark: what only a command line has.
    """

    key: str
    names: Sequence[str]
    type: Any
    is_list: bool
    default: Any
    help: str
    mark: Option

    @classmethod
    def of(cls, parameter: inspect.Parameter, type_: Any, mark: Option, text: str) -> CliOption:
        """Return the option of a parameter with a type, its mark and its description."""
        type_ = str if mark.parse else _written_type(type_)
        is_list = get_origin(type_) is list
        type_ = get_args(type_)[0] if is_list else type_
        key, default = parameter.name, parameter.default
        name = f"-{key}".replace("_", "-")
        names = mark.names.split() or [f"-{name}", *[f"--no{name}"] * (default is True)]
        if isinstance(mark, Argument):
            names = [mark.names or key.upper()]
        text = mark.help or text[:1].upper() + text[1:]
        return cls(key, names, type_, is_list or mark.is_repeated, default, text, mark)

    @property
    def label(self) -> str:
        """How help names it: "-o, --output"."""
        return ", ".join(sorted(self.names, key=len))

    @property
    def is_argument(self) -> bool:
        return isinstance(self.mark, Argument)

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def choices(self) -> dict[str, Any]:
        """The values of a choice by their texts; empty for other types."""
        values = self.type if isinstance(self.type, EnumType) else get_args(self.type)
        return {str(value): value for value in values}

    @property
    def values(self) -> Iterable[str]:
        """The texts that completion offers."""
        return self.mark.complete() if self.mark.complete else self.choices

    @property
    def range(self) -> str:
        """The range of a number in words; "" without one."""
        ends = {"at least": self.mark.min, "at most": self.mark.max}
        return " and ".join(f"{end} {at:g}" for end, at in ends.items() if math.isfinite(at))

    def read(self, texts: Sequence[str]) -> Any:
        """Return the value of what is written; of a flag, that is its name.

        Raises:
            ValueError: a text is no value of this type.
        """
        values = [self._read(text) for text in texts]
        value = values if self.is_list else values[0]
        return self.mark.parse(value, self.names[0]) if self.mark.parse else value

    def _read(self, text: str) -> Any:
        if self.is_flag:
            return not text.startswith("--no-")
        if choices := self.choices:
            if text not in choices:
                raise ValueError(f"'{text}' is not one of {', '.join(map(repr, choices))}")
            return choices[text]
        try:
            value = self.type(text)
        except ValueError:
            kind = "whole number" if self.type is int else "number"
            raise ValueError(f"'{text}' is not a {kind}") from None
        if self.type in (int, float) and not self.mark.min <= value <= self.mark.max:
            raise ValueError(f"{text} is not {self.range or 'a number'}")
        return value


@dataclass(frozen=True, slots=True)
class CliOptions:
    """The options of a function or a dataclass, which `make` calls with their values."""

    make: Source
    parts: Mapping[str, CliOption | CliOptions]

    @classmethod
    def of(cls, function: Source) -> CliOptions:
        """Return the options of a command."""
        return cls._of_fields(function, Fields(function))

    @classmethod
    def _of_fields(cls, make: Source, fields: Fields) -> CliOptions:
        parameters = inspect.signature(fields.source).parameters
        names = fields.names.split() or [*parameters]
        annotations = {name: parameters[name].annotation for name in names}
        for name, form in fields.forms.items():
            if name in annotations:
                is_mark = isinstance(form, Option)
                annotations[name] = Annotated[annotations[name], form] if is_mark else form
        types = _types(annotations, fields.source)
        texts = described_in(inspect.getdoc(fields.source) or "")
        return cls(make, {name: cls._part(parameters[name], types[name], texts) for name in names})

    @classmethod
    def _part(
        cls, parameter: inspect.Parameter, annotation: Any, texts: Mapping[str, str]
    ) -> CliOption | CliOptions:
        """Return the option of a parameter, or the options of its fields."""
        is_marked = get_origin(annotation) is Annotated
        type_, *marks = get_args(annotation) if is_marked else (annotation,)
        fields = next((mark for mark in marks if isinstance(mark, Fields)), None)
        if fields or is_dataclass(type_):
            return cls._of_fields(type_, fields or Fields(type_))
        mark = next((mark for mark in marks if isinstance(mark, Option)), Option())
        return CliOption.of(parameter, type_, mark, texts.get(parameter.name, ""))

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return what `make` returns for the values of options by their keys."""
        return self.make(
            **{
                name: part.value(values) if isinstance(part, CliOptions) else values[part.key]
                for name, part in self.parts.items()
            }
        )

    @property
    def in_order(self) -> list[CliOption]:
        """Arguments and options in the order of help: `options_first`, then others."""
        place = {name: index for index, name in enumerate(getattr(self.make, FIRST_OPTIONS, ()))}
        return sorted(
            self._each(), key=lambda each: (not each.is_argument, place.get(each.key, math.inf))
        )

    def _each(self) -> Iterator[CliOption]:
        for part in self.parts.values():
            yield from part._each() if isinstance(part, CliOptions) else [part]


def options_first(names: str) -> Callable[[Source], Source]:
    """List these options first in the help of a command; only `--help --all` has the others."""

    def mark(function: Source) -> Source:
        setattr(function, FIRST_OPTIONS, names.split())
        return function

    return mark


def _types(annotations: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return types by name. Others of the request may need modules that are not imported."""
    written = SimpleNamespace(__annotations__=annotations)
    module = vars(sys.modules[source.__module__])
    return get_type_hints(written, module, include_extras=True)


def _written_type(type_: Any) -> Any:
    """Return the type of what is written: text where Python takes text or something else."""
    kinds = get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,)
    return str if str in kinds else next(kind for kind in kinds if kind is not NoneType)
