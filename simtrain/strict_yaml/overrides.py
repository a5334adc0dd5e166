"""Overrides from the command line: `parallelism.tensor=4` laid over a loaded document."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from simtrain.errors import InputError, Location, Problem
from simtrain.strict_yaml.core_schema import build
from simtrain.strict_yaml.document import Document, document_with, overlay
from simtrain.strict_yaml.reading import compose


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """The document with each `path=value` set, in order; sections are created where needed.

    The value is read as YAML ("4", "true", "{tensor: 4}", "400 Gb/s") and located at the
    override itself.

    Raises:
        InputError: no "=", an empty part in the path, a value that is not YAML, or a path that
            leads through a plain value.
    """
    return reduce(overlay, map(_document_of, overrides), document)


def _document_of(override: str) -> Document:
    """A document that holds nothing but the overridden value."""
    place, path = _place_of(override), path_of(override)
    node = compose(override.partition("=")[2], lambda line, column: place)
    # An override with nothing after the "=" sets null, as in a file.
    value = None if node is None else build(node, lambda *_: place)[0]
    return document_with(path, value, place)


def _place_of(override: str) -> Location:
    return Location(f"--set {override}")


def path_of(override: str) -> tuple[str, ...]:
    """The path that an override sets.

    Raises:
        InputError: it has no "=", or its path an empty part.
    """
    left, equals, _ = override.partition("=")
    path = tuple(part.strip() for part in left.split("."))
    if not equals or not all(path):
        message = 'has no "="' if not equals else f'the path "{left.strip()}" has an empty part'
        fix = 'write section.field=value, for example "--set parallelism.tensor=4"'
        raise InputError([Problem("E112", message, _place_of(override), fix=fix)])
    return path
