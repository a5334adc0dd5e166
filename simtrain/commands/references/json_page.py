"""The reference page of JSON: the keys of every command's output, from the classes themselves."""

import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel

from simtrain.base.extras import is_installed
from simtrain.base.plain_data import SCHEMA_VERSION, SPLICED, PlainData, json_fields
from simtrain.base.wording import Sentence
from simtrain.scenario.field_docs import descriptions

_OUTPUTS: dict[str, str] = {
    "run": "simtrain.studies.variation:VariedRun",
    "run --show ops": "simtrain.iteration.report.operators:StageOperators",
    "run --show settings": "simtrain.scenario.resolved:ResolvedSettings",
    "run --show memory": "simtrain.iteration.memory.report:MemoryReport",
    "cost": "simtrain.studies.cost:TrainingCost",
    "compare": "simtrain.views.compare:ScenarioComparison",
    "run --show sources": "simtrain.iteration.report.origins:Explained",
    "compare of one scenario, also": "simtrain.studies.advice:Advice",
    "compare --schedules": "simtrain.studies.schedule_comparison:ScheduleComparison",
    "search": "simtrain.studies.search.result:SearchResult",
    "plan": "simtrain.studies.planning:TrainingPlan",
    "sweep": "simtrain.views.sweep:Summary",
    "sweep --query": "simtrain.studies.sweep.results:Answer",
    "sweep of a folder": "simtrain.render.figures.sweep:SweepPictures",
    "validate": "simtrain.studies.validation:Validation",
    "show PROFILE": "simtrain.views.profile:ProfilePage",
    "reproduce table4, table5, dp530b": "simtrain.paper.entries:TimeComparison",
    "reproduce of other targets": "simtrain.paper.entries:Reproduction",
    "reproduce all": "simtrain.paper.entries:AllTargets",
    "calibrate validate": "calibrate.validation.profile:ProfileValidation",
    "calibrate memory": "calibrate.memory.cases:MemoryComparison",
}
"""The class of each command's output, as "module:class": importing all takes a second."""

_HEAD = f"""\
# JSON

With `--json`, commands print one object in full precision. Units are in the names of keys: times
are in seconds, memory is in bytes, shares are fractions of 1. `schema_version` is {SCHEMA_VERSION};
it counts up when a key is removed or changes its meaning. Keys may be added at any time.
`made_with` has the version of simtrain, and the name and the SHA-256 of the hardware profile.
Python has the same data: `simtrain.simulate(scenario).to_dict()`.

An error prints an object too: `schema_version`, `exit_code` and `errors`, each with `code`,
`message`, `place` (a file, or a part of the command line), `line`, `column`, `reason` and `fix`,
null where there is none. The exit code is 3 if a scenario does not fit in memory, else 2. stderr
has the text for people, as without `--json`.

"""
_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    Path: "text",
    None: "null",
    type(None): "null",
    Any: "any",
    Sentence: "sentence",
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of an object.

    Args:
        name: the key.
        type_text: type of its value in words.
        meaning: what it is.
        classes: classes of its value, or of values in it.
        is_optional: the key may be absent.
    """

    name: str
    type_text: str
    meaning: str
    classes: tuple[type, ...]
    is_optional: bool


@cache
def outputs() -> dict[str, type]:
    """Return the class of each command's output by the command."""
    places = {command: place.partition(":") for command, place in _OUTPUTS.items()}
    return {
        command: getattr(importlib.import_module(module), name)
        for command, (module, _, name) in places.items()
    }


def page() -> str:
    """Return the page: a section per command, then one per class that several commands have."""
    parts = [_HEAD]
    waiting: list[type] = []
    for command, cls in outputs().items():
        parts.append(f"## {command}\n\n{_summary(cls)}\n\n{_table(cls)}\n")
        waiting += [each for key in keys_of(cls) for each in key.classes]
    parts.append("## Objects in other objects\n\n")
    done = set(outputs().values())
    while waiting:
        cls = waiting.pop(0)
        if cls not in done:
            done.add(cls)
            parts.append(f"### {cls.__name__}\n\n{_summary(cls)}\n\n{_table(cls)}\n")
            waiting += [each for key in keys_of(cls) for each in key.classes]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _table(cls: type) -> str:
    lines = ["| key | type | meaning |", "|---|---|---|"]
    lines += [f"| `{key.name}` | {key.type_text} | {key.meaning} |" for key in keys_of(cls)]
    return "\n".join(lines)


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")


def keys_of(cls: type) -> list[Key]:
    """Return the keys of a class's objects, those of spliced objects among them."""
    return [*_keys(cls)]


def _keys(cls: type) -> Iterator[Key]:
    for name, path in json_fields(cls).items():
        annotation, meaning = _described(cls, path)
        if name.startswith(SPLICED) and (inner := [*_classes(annotation)]):
            yield from keys_of(inner[0])
            continue
        shown = "..." if name.startswith(SPLICED) else name
        is_optional = name in getattr(cls, "json_omits_none", ())
        type_text = _type_text(annotation)
        if is_optional:
            type_text = type_text.replace(" or null", ", or absent")
        yield Key(shown, type_text, meaning, tuple(_classes(annotation)), is_optional)


def _described(cls: type, path: str) -> tuple[Any, str]:
    """Return the type of an attribute and what its docstring says; its parents may be None."""
    annotation: Any = cls
    meaning, may_be_none = "", False
    for name in path.split("."):
        owner = next(iter(_members(annotation)))
        annotation, meaning = _attribute(owner, name)
        last_may = type(None) in typing.get_args(annotation)
        may_be_none = may_be_none or last_may
    if may_be_none and type(None) not in typing.get_args(annotation):
        annotation = annotation | None
    return annotation, meaning


def _attribute(cls: type, name: str) -> tuple[Any, str]:
    """Return the type and the meaning of a field or a property."""
    static = inspect.getattr_static(cls, name, None)
    if isinstance(static, property | cached_property):
        function = static.fget if isinstance(static, property) else static.func
        doc = inspect.getdoc(function) or ""
        return _hints(function)["return"], doc.partition("\n\n")[0].replace("\n", " ")
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    text = descriptions(owner).get(name, "")
    if not text:
        inner = next(iter(_classes(_hints(owner)[name])), None)
        text = _summary(inner) if inner else ""
    return _hints(owner)[name], text[:1].upper() + text[1:]


def _hints(thing: Any) -> dict[str, Any]:
    """Return annotations; names that only type checkers import are looked up in all classes."""
    names: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(thing, localns=names)
        except NameError as error:
            name = str(error.name)
            names[name] = _named(name)


class _Absent:
    """A package that is not installed: its types are in hints, and in no JSON."""

    def __getattr__(self, name: str) -> Any:
        return Any


def _named(name: str) -> Any:
    """Return a class of simtrain, or another package, by its name."""
    for cls in [*PlainData.__subclasses__(), *BaseModel.__subclasses__(), *object.__subclasses__()]:
        if cls.__name__ == name and cls.__module__.startswith(("simtrain", "calibrate")):
            return cls
    return importlib.import_module(name) if is_installed(name) else _Absent()


def _members(annotation: Any) -> Iterator[type]:
    """Yield the classes of a type, without None."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _members(part)
    elif isinstance(annotation, type) and annotation is not type(None):
        yield annotation


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the classes with keys in a type: alone, in lists, or as values of mappings."""
    for part in typing.get_args(annotation):
        yield from _classes(part)
    if isinstance(annotation, type) and (
        issubclass(annotation, PlainData) or _is_dataclass(annotation)
    ):
        yield annotation


def _is_dataclass(cls: type) -> bool:
    return hasattr(cls, "__dataclass_fields__")


def _anchor(cls: type) -> str:
    """Return the anchor of a class's section, which may be that of a command."""
    heading = next((name for name, top in outputs().items() if top is cls), cls.__name__)
    return re.sub(r"[^\w\s-]", "", heading.lower()).replace(" ", "-")


def _type_text(annotation: Any) -> str:
    """Return a type in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_type_text, arguments)))
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in arguments)
    if origin in (dict, Mapping):
        return f"object: {_type_text(arguments[1])} by name"
    if origin in (list, tuple, Sequence, Iterable):
        return f"list: {_type_text(arguments[0])}"
    if annotation in _TYPES:
        return _TYPES[annotation]
    if next(_classes(annotation), None):
        return f"[{annotation.__name__}](#{_anchor(annotation)})"
    values = (
        [f'"{member.value}"' for member in annotation] if hasattr(annotation, "__members__") else []
    )
    return " or ".join(values) or ("object" if issubclass(annotation, BaseModel) else "text")
