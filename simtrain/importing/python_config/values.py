"""Values of a Python file that is read as text: plain values, objects of calls, and unknown ones.

A list, tuple, dict, number, text, bool or None of the file is that value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any


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

    def copy(self) -> Built:
        """Return a copy with copies of the objects in its fields."""
        fields = {
            name: value.copy() if isinstance(value, Built) else value
            for name, value in self.fields.items()
        }
        children = {name: child.copy() for name, child in self.children.items()}
        return replace(self, fields=fields, places={**self.places}, children=children)

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
    if isinstance(value, Unknown):
        return value
    if isinstance(value, Symbol):
        return Unknown(value.name, "defined in another file")
    if isinstance(value, Built):
        if value.is_default:
            return Unknown("a default", "in another file")
        return None if value.is_object else Unknown(f"{value.symbol.last}()", "in another file")
    parts: list[Any] = []
    if isinstance(value, list | tuple):
        parts = [*value]
    elif isinstance(value, dict):
        parts = [*value.values()]
    return next((unknown for part in parts if (unknown := unknown_in(part))), None)
