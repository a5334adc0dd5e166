"""Commands from functions and requests: names, types, defaults and help of options are said once.

A parameter of a command is an option, or a dataclass that stands for an option per field. Its help
is what the docstring of the function or dataclass says under `Args:`. `Annotated` adds what only a
command line has: another name, an argument, completion, or a text that is parsed (`Written`).

The request of a Python call gives its fields to a command in the same way (`Fields`), so both say
the same. The modules of requests are imported when help is printed: they import nothing slow.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from simtrain.base.request import described_in
from simtrain.base.values import dataclass, field, is_dataclass

Source = Callable[..., Any]
"""A function or a dataclass: parameters with types and defaults, and a docstring about them."""
FIRST_OPTIONS = "first_options"
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


class Option:
    """Marks a parameter with what only a command line has: names, and settings of `typer.Option`.

    typer itself is imported for help, completion and errors only (`simtrain.commands.typed`).
    """

    is_argument = False

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names, self.settings = names, settings


class Argument(Option):
    """Marks a parameter that is written without a name; settings are those of `typer.Argument`."""

    is_argument = True


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
class CliOption:
    """An option or an argument of a command.

    Args:
        key: the name of the function's parameter.
        names: such as "-o" and "--output"; a flag that is on by default has "--wide/--no-wide".
        type: what a command line writes: text, a number, a list, a path, a choice or a flag.
        default: its value, if it is not written; `inspect.Parameter.empty` if it must be.
        help: what it means.
        mark: its settings.
        parse: the parser of a value that is `Written`.
        parsed_default: what `parse` would return for the default.
    """

    key: str
    names: tuple[str, ...]
    type: Any
    default: Any
    help: str
    mark: Option
    parse: Callable[[Any, str], Any] | None = None
    parsed_default: Any = None

    @classmethod
    def of(
        cls, parameter: inspect.Parameter, type_: Any, marks: Sequence[Any], text: str
    ) -> CliOption:
        """Return the option of a parameter with a type, its marks and its description."""
        mark = next((mark for mark in marks if isinstance(mark, Option)), Option())
        written = next((mark for mark in marks if isinstance(mark, Written)), None)
        default, parsed_default = parameter.default, None
        if written is None:
            type_ = _text_type(type_)
        elif default is parameter.empty:
            type_ = written.type
        else:
            type_, default, parsed_default = written.type | None, None, default
        name = parameter.name.replace("_", "-")
        # typer itself would add --no-x to a flag that is off by default.
        usual = f"--{name}/--no-{name}" if default is True else f"--{name}"
        text = mark.settings.get("help") or text[:1].upper() + text[1:]
        names = (parameter.name,) if mark.is_argument else mark.names or (usual,)
        parse = written.parse if written else None
        return cls(parameter.name, names, type_, default, text, mark, parse, parsed_default)

    @property
    def is_argument(self) -> bool:
        return self.mark.is_argument

    @property
    def is_list(self) -> bool:
        return get_origin(self._kind) is list

    @property
    def labels(self) -> list[str]:
        """How help names it: "-o" and "--output", or "SCENARIO"."""
        if self.is_argument:
            return [self.mark.settings.get("metavar", self.key).upper()]
        return sorted([*self.names[0].split("/")[:1], *self.names[1:]], key=len)

    @property
    def constants(self) -> dict[str, bool]:
        """The values of the names of a flag; empty for other options."""
        if self.type is not bool:
            return {}
        both = [name.partition("/")[::2] for name in self.names]
        return {on: True for on, _ in both} | {off: False for _, off in both if off}

    def parameters(self) -> Iterator[CliOption]:
        yield self

    def value(self, values: Mapping[str, Any]) -> Any:
        value = values[self.key]
        if self.parse is None:
            return value
        return self.parsed_default if value is None else self.parse(value, self.names[0])

    @property
    def _kind(self) -> Any:
        """The type without None, if that leaves one."""
        kinds = get_args(self.type) if get_origin(self.type) in (Union, UnionType) else ()
        others = [kind for kind in kinds if kind is not NoneType]
        return others[0] if len(others) == 1 else self.type

    def read(self, texts: Sequence[str]) -> Any:
        """Return the value of plain texts; ValueError if typer is to read or to refuse them."""
        if not texts and self.default is not inspect.Parameter.empty:
            return self.default
        values = [self._read(text) for text in texts if text and not text.startswith("-")]
        if not values or len(values) < len(texts) or (len(values) > 1 and not self.is_list):
            raise ValueError
        return values if self.is_list else values[0]

    def _read(self, text: str) -> Any:
        kind = get_args(self._kind)[0] if self.is_list else self._kind
        if kind in (str, Path):
            return kind(text)
        if get_origin(kind) is Literal and text in get_args(kind):
            return text
        settings = self.mark.settings
        if kind in (int, float) and _NUMBER.fullmatch(text):
            number = kind(text)
            if settings.get("min", number) <= number <= settings.get("max", number):
                return number
        raise ValueError


@dataclass(frozen=True, slots=True)
class CliOptions:
    """The options of a function or a dataclass, which `make` calls with their values."""

    make: Source
    parts: Mapping[str, CliOption | CliOptions]

    @classmethod
    def of(cls, function: Source) -> CliOptions:
        """Return the options of a command."""
        return cls._of_fields(function, _all_fields(function))

    @classmethod
    def _of_fields(cls, make: Source, fields: Fields) -> CliOptions:
        parameters = inspect.signature(fields.source).parameters
        annotations = {name: parameter.annotation for name, parameter in parameters.items()}
        annotations |= fields.forms
        types = _types({name: annotations[name] for name in fields.names.split()}, fields.source)
        texts = described_in(inspect.getdoc(fields.source) or "")
        return cls(
            make,
            {name: cls._part(parameters[name], type_, texts) for name, type_ in types.items()},
        )

    @classmethod
    def _part(
        cls, parameter: inspect.Parameter, annotation: Any, texts: Mapping[str, str]
    ) -> CliOption | CliOptions:
        """Return the option of a parameter, or the options of its fields."""
        is_marked = get_origin(annotation) is Annotated
        type_, *marks = get_args(annotation) if is_marked else (annotation,)
        fields = next((mark for mark in marks if isinstance(mark, Fields)), None)
        if fields or is_dataclass(type_):
            return cls._of_fields(type_, fields or _all_fields(type_))
        return CliOption.of(parameter, type_, marks, texts.get(parameter.name, ""))

    def parameters(self) -> Iterator[CliOption]:
        for part in self.parts.values():
            yield from part.parameters()

    def value(self, values: Mapping[str, Any]) -> Any:
        return self.make(**{name: part.value(values) for name, part in self.parts.items()})

    @property
    def in_order(self) -> list[CliOption]:
        """The options in the order of help: `options_first`, others, and panels of their own."""
        first = getattr(self.make, FIRST_OPTIONS, [])
        place = {name: index for index, name in enumerate(first)}
        return sorted(
            self.parameters(),
            key=lambda each: (
                "rich_help_panel" in each.mark.settings,
                place.get(each.key, len(place)),
            ),
        )

    def read(self, words: Sequence[str]) -> dict[str, Any] | None:
        """Return values of plain words; None if typer is to read or to refuse them.

        Plain are arguments, flags, and options with their values, in full and not twice.
        """
        every = self.in_order
        options = [each for each in every if not each.is_argument]
        named = {name: each for each in options for name in (*each.names, *each.constants)}
        values: dict[str, Any] = {}
        texts: dict[str, list[str]] = {}
        plain, left = [], iter(words)
        for word in left:
            name, equals, text = word.partition("=") if word[:2] == "--" else (word, "", "")
            if not word.startswith("-"):
                plain.append(word)
            elif name not in named or named[name].key in values:
                return None
            elif not named[name].constants:
                texts.setdefault(named[name].key, []).append(text if equals else next(left, ""))
            elif equals:
                return None
            else:
                values[named[name].key] = named[name].constants[name]
        arguments = [each for each in every if each.is_argument]
        if len(arguments) == 1 and arguments[0].is_list and plain:
            texts[arguments[0].key] = plain
        elif len(plain) <= len(arguments) and not any(each.is_list for each in arguments):
            texts |= {each.key: [text] for each, text in zip(arguments, plain, strict=False)}
        else:
            return None
        others = [each for each in every if each.key not in values]
        with suppress(ValueError):
            return values | {each.key: each.read(texts.get(each.key, [])) for each in others}
        return None


def options_first(names: str) -> Callable[[Source], Source]:
    """List these options first in the help of a command; only `--help --all` has the others.

    Options in a panel of their own come last.
    """

    def mark(function: Source) -> Source:
        setattr(function, FIRST_OPTIONS, names.split())
        return function

    return mark


def _all_fields(source: Source) -> Fields:
    return Fields(source, " ".join(inspect.signature(source).parameters))


def _types(annotations: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return types by name. Others of the request may need modules that are not imported."""
    written = SimpleNamespace(__annotations__=annotations)
    module = vars(sys.modules[source.__module__])
    return get_type_hints(written, module, include_extras=True)


def _text_type(type_: Any) -> Any:
    """Return the type of an option: text where Python takes text or something else."""
    kinds = get_args(type_) if get_origin(type_) in (Union, UnionType) else ()
    if str not in kinds:
        return type_
    return str | None if NoneType in kinds else str
