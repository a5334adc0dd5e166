"""Values of a Python file that is read as text: plain values, objects of calls, and unknown ones.

A list, tuple, dict, number, text, bool or None of the file is that value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_DEEPEST, _MOST_PARTS = 30, 100_000


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that the file does not determine.

    Args:
        text: the expression that it depends on.
        reason: why it is unknown, such as "which is not evaluated".
        objects: objects, lists and dicts of the file that it may be, or have parts of.
    """

    text: str
    reason: str
    objects: tuple[Any, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that the file imports or does not define, such as torchtitan.trainer.Trainer."""

    name: str

    @property
    def last(self) -> str:
        """Its last word, without the Config of a class Name.Config."""
        *_, word = self.name.removesuffix(".Config").split(".")
        return word


@dataclass(slots=True)
class Built:
    """An object that a call of a symbol makes.

    Args:
        symbol: what is called.
        positional: the arguments without a name.
        fields: the arguments with a name, and attributes that are assigned later.
        places: the expression of each field.
        children: objects of attributes that are read before they are assigned: defaults of a class
            that the file does not contain.
        receiver: the object whose method is called.
        changes: functions of other files that got the object and may change it, with their call.
    """

    symbol: Symbol
    node: ast.AST
    positional: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, ast.AST] = field(default_factory=dict)
    children: dict[str, Built] = field(default_factory=dict)
    receiver: Any = None
    changes: dict[str, ast.AST] = field(default_factory=dict)

    def attribute(self, name: str, node: ast.AST) -> Any:
        """Return a field, or an object for the default that the file does not contain."""
        if name in self.fields:
            return self.fields[name]
        return self.children.setdefault(name, Built(Symbol(""), node))

    def assign(self, name: str, value: Any, node: ast.AST) -> None:
        """Set a field."""
        self.children.pop(name, None)
        self.fields[name], self.places[name] = value, node

    @classmethod
    def of(
        cls,
        symbol: Symbol,
        call: ast.Call,
        positional: list[Any],
        keywords: dict[str, Any],
        receiver: Any = None,
    ) -> Built:
        """Return the object that a call makes; `keywords` has those of `**options` too."""
        places: dict[str, ast.AST] = dict.fromkeys(keywords, call)
        places |= {word.arg: word.value for word in call.keywords if word.arg}
        return cls(symbol, call, positional, keywords, places, receiver=receiver)

    @property
    def is_default(self) -> bool:
        """Whether the file contains nothing but reads of this object."""
        return not self.symbol.name

    @property
    def is_object(self) -> bool:
        """Whether it is an object of a class; a function of another file may return anything."""
        return self.symbol.last.lstrip("_")[:1].isupper()

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, ast.AST]]:
        """Yield the path, value and expression of each field, and of those of objects in fields.

        The object itself follows its fields, unless it is a default.
        """
        for name, value in self.fields.items():
            if isinstance(value, Built):
                yield from value.leaves((*path, name))
                yield (*path, name), value, self.places[name]
            else:
                yield (*path, name), value, self.places[name]
        for name, child in self.children.items():
            yield from child.leaves((*path, name))

    def all_changes(
        self, path: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], dict[str, ast.AST]]]:
        """Yield the path of each object that other files' functions may change, and these."""
        if self.changes:
            yield path, self.changes
        for name, value in (*self.fields.items(), *self.children.items()):
            if isinstance(value, Built):
                yield from value.all_changes((*path, name))


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value and the items of lists, tuples and dicts in it, each list once."""
    seen: set[int] = set()  # a file may put a list into many others, or into itself
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, list | tuple | dict):
            if id(part) in seen:
                continue
            seen.add(id(part))
            parts += reversed([*part.values()] if isinstance(part, dict) else part)
        yield part


def unknown_in(value: Any) -> Unknown | None:
    """Return the unknown part of a value, or None if all of it is in the file."""
    for part in _parts(value):
        if isinstance(part, Unknown):
            return part
        if isinstance(part, Symbol):
            return Unknown(part.name, "defined in another file")
        if isinstance(part, Built) and not part.is_object:
            name = "a default" if part.is_default else f"{part.symbol.last}()"
            return Unknown(name, "in another file")
    return None


def objects_of(value: Any) -> tuple[Any, ...]:
    """Return the objects, lists and dicts that a value is, may be, or has as items."""
    objects: dict[int, Any] = {}
    for part in _parts(value):
        inner = part.objects if isinstance(part, Unknown) else [part]
        objects |= {id(each): each for each in inner if isinstance(each, Built | list | dict)}
    return tuple(objects.values())


def is_small_tree(value: Any) -> bool:
    """Return whether the objects and lists in a value are nested a few times, and not too many.

    Only such values can be followed from field to field: in a file, a list may contain itself.
    """
    parts, num_parts = [(value, 0)], 0
    while parts:
        part, depth = parts.pop()
        num_parts += 1
        if depth > _DEEPEST or num_parts > _MOST_PARTS:
            return False
        inner: list[Any] = []
        if isinstance(part, Built):
            inner = [*part.positional, *part.fields.values(), *part.children.values()]
        elif isinstance(part, list | tuple):
            inner = [*part]
        elif isinstance(part, dict):
            inner = [*part.values()]
        parts += [(each, depth + 1) for each in inner]
    return True
