"""Commands from functions and requests: names, types, defaults and help of options are said once.

A parameter of a command is an option, or a dataclass that stands for an option per field. Its help
is what the docstring of the function or dataclass says under `Args:`. `Annotated` adds what only a
command line has: another name, an argument, completion, or a text that is parsed (`Written`).

The request of a Python call gives its fields to a command in the same way (`Fields`), so both say
the same. The modules of requests are imported when help is printed: they import nothing slow.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, is_dataclass
from functools import wraps
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from simtrain.base.request import described_in

Source = Callable[..., Any]
"""A function or a dataclass: parameters with types and defaults, and a docstring about them."""
FIRST_OPTIONS = "first_options"


@dataclass(frozen=True, slots=True)
class Fields:
    """Marks a parameter that has options for some fields of a dataclass.

    The command gets a value of the parameter's type: the dataclass itself, or a dict of the fields.

    Args:
        source: the dataclass, such as the request of a Python call.
        names: the fields, in the order of the options.
        forms: types of fields that a command line writes differently.
    """

    source: Source
    names: str
    forms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """Marks a value that is parsed from its text on the command line, such as "0,1,63".

    Args:
        parse: returns the value of a text; it gets the name of the option for its errors.
        type: what it gets: text, or a list of texts of an option that may be repeated.
    """

    parse: Callable[[Any, str], Any]
    type: Any = str


@dataclass(frozen=True, slots=True)
class _Option:
    """An option or an argument, as typer reads it; `name` is its first, such as "--window"."""

    parameter: inspect.Parameter
    name: str
    default: Any = None
    parse: Callable[[Any, str], Any] | None = None

    @classmethod
    def of(cls, parameter: inspect.Parameter, type_: Any, marks: list[Any], text: str) -> _Option:
        """Return the option of a parameter with a type, its marks and its description."""
        settings = [mark for mark in marks if isinstance(mark, OptionInfo | ArgumentInfo)]
        setting = copy(settings[0]) if settings else typer.Option()
        setting.help = setting.help or as_help(text)
        names = _names(setting, parameter)
        if isinstance(setting, OptionInfo):
            setting.default, setting.param_decls = ..., names
        option = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        written = next((mark for mark in marks if isinstance(mark, Written)), None)
        if written is None:
            return cls(option.replace(annotation=Annotated[_text_type(type_), setting]), names[0])
        if option.default is option.empty:
            option = option.replace(annotation=Annotated[written.type, setting])
        else:
            type_ = Annotated[written.type | None, setting]
            option = option.replace(annotation=type_, default=None)
        return cls(option, names[0], parameter.default, written.parse)

    def options(self) -> Iterator[inspect.Parameter]:
        yield self.parameter

    def value(self, values: Mapping[str, Any]) -> Any:
        value = values[self.parameter.name]
        if self.parse is None:
            return value
        return self.default if value is None else self.parse(value, self.name)


@dataclass(frozen=True, slots=True)
class _Group:
    """The options of a function or a dataclass, which `make` calls with their values."""

    make: Source
    parts: Mapping[str, _Option | _Group]

    @classmethod
    def of(cls, make: Source, fields: Fields) -> _Group:
        """Return the options of fields."""
        parameters = inspect.signature(fields.source).parameters
        annotations = {name: parameter.annotation for name, parameter in parameters.items()}
        annotations |= fields.forms
        types = _types({name: annotations[name] for name in fields.names.split()}, fields.source)
        texts = described_in(inspect.getdoc(fields.source) or "")
        return cls(
            make,
            {name: _part(parameters[name], type_, texts) for name, type_ in types.items()},
        )

    def options(self) -> Iterator[inspect.Parameter]:
        for part in self.parts.values():
            yield from part.options()

    def value(self, values: Mapping[str, Any]) -> Any:
        return self.make(**{name: part.value(values) for name, part in self.parts.items()})


def as_help(text: str) -> str:
    """Return what a docstring says of a parameter as the help of its option."""
    return text[:1].upper() + text[1:]


def options_first(names: str) -> Callable[[Source], Source]:
    """List these options first in the help of a command; only `--help --all` has the others.

    Options in a panel of their own come last.
    """

    def mark(function: Source) -> Source:
        setattr(function, FIRST_OPTIONS, names.split())
        return function

    return mark


def declared(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer takes it: with a parameter per option or argument."""
    group = _Group.of(function, _all_fields(function))
    first = getattr(function, FIRST_OPTIONS, [])
    place = {name: index for index, name in enumerate(first)}
    options = sorted(
        group.options(),
        key=lambda option: (_panel(option) is not None, place.get(option.name, len(place))),
    )

    @wraps(function)
    def command(**values: Any) -> None:
        group.value(values)

    # typer reads both.
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    return command


def _part(
    parameter: inspect.Parameter, annotation: Any, texts: Mapping[str, str]
) -> _Option | _Group:
    """Return the option of a parameter, or the options of its fields."""
    type_, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    fields = next((mark for mark in marks if isinstance(mark, Fields)), None)
    if fields or is_dataclass(type_):
        return _Group.of(type_, fields or _all_fields(type_))
    return _Option.of(parameter, type_, marks, texts.get(parameter.name, ""))


def _all_fields(source: Source) -> Fields:
    return Fields(source, " ".join(inspect.signature(source).parameters))


def _types(annotations: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return types by name. Others of the request may need modules that are not imported."""
    written = SimpleNamespace(__annotations__=annotations)
    module = vars(sys.modules[source.__module__])
    return get_type_hints(written, module, include_extras=True)


def _names(setting: OptionInfo | ArgumentInfo, parameter: inspect.Parameter) -> tuple[str, ...]:
    """Return the names of an option: those of its setting, or that of its parameter."""
    # In `Annotated`, typer takes the first name for a default.
    first = () if setting.default is ... else (setting.default,)
    if names := (*first, *(setting.param_decls or ())):
        return names
    name = parameter.name.replace("_", "-")
    # typer itself would add --no-x to a flag that is off by default.
    return (f"--{name}/--no-{name}",) if parameter.default is True else (f"--{name}",)


def _panel(option: inspect.Parameter) -> str | None:
    setting: OptionInfo | ArgumentInfo = get_args(option.annotation)[1]
    return setting.rich_help_panel


def _text_type(type_: Any) -> Any:
    """Return the type of an option: text where Python takes text or something else."""
    kinds = get_args(type_) if get_origin(type_) in (Union, UnionType) else ()
    if str not in kinds:
        return type_
    return str | None if type(None) in kinds else str
