"""Values of a Python file that is read as text: plain values, objects of calls, and unknown ones.

A list, tuple, dict, number, text, bool or None of the file is that value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

_DEEPEST, _MOST_PARTS = 30, 100_000


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that the file does not determine.

    Args:
        text: the expression that it depends on.
        reason: why it is unknown, such as "a parameter without a default".
    """

    text: str
    reason: str


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

    @property
    def is_default(self) -> bool:
        """Whether the file contains nothing but reads of this object."""
        return not self.symbol.name

    @property
    def is_object(self) -> bool:
        """Whether it is an object of a class; a function of another file may return anything."""
        return self.symbol.last.lstrip("_")[:1].isupper()

    def copy(self, copies: dict[int, Built] | None = None) -> Built:
        """Return a copy with copies of the objects in its fields.

        Args:
            copies: the copies that are made already, by the identity of their original: an object
                may be in several fields, or in its own.
        """
        copies = {} if copies is None else copies
        if id(self) in copies:
            return copies[id(self)]
        copy = copies[id(self)] = replace(self, places={**self.places})
        copy.fields = {
            name: value.copy(copies) if isinstance(value, Built) else value
            for name, value in self.fields.items()
        }
        copy.children = {name: child.copy(copies) for name, child in self.children.items()}
        return copy

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


def unknown_in(value: Any) -> Unknown | None:
    """Return the unknown part of a value, or None if all of it is in the file."""
    seen: set[int] = set()  # lists, of which a file may put one into many others, or into itself
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, Unknown):
            return part
        if isinstance(part, Symbol):
            return Unknown(part.name, "defined in another file")
        if isinstance(part, Built):
            if part.is_default:
                return Unknown("a default", "in another file")
            if not part.is_object:
                return Unknown(f"{part.symbol.last}()", "in another file")
        elif isinstance(part, list | tuple | dict) and id(part) not in seen:
            seen.add(id(part))
            inner = part.values() if isinstance(part, dict) else part
            parts += reversed([*inner])
    return None


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
