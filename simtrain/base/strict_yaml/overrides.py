"""Overrides from the command line, such as `parallelism.tensor=4`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from simtrain.base.strict_yaml.core_schema import build
from simtrain.base.strict_yaml.document import YamlDocument, document_with, overlay
from simtrain.base.strict_yaml.reading import compose
from simtrain.errors import InputError, Location, Problem


def apply_overrides(document: YamlDocument, overrides: Iterable[str]) -> YamlDocument:
    """Apply each `path=value` in order and return the document; missing sections are created.

    The value is parsed as YAML ("4", "true", "{tensor: 4}", "400 Gb/s"). Its position is the
    override itself.

    Raises:
        InputError: no "=", an empty part in the path, a value that is not YAML, or a path that
            leads through a plain value.
    """
    return reduce(overlay, map(_document_of, overrides), document)


def _document_of(override: str) -> YamlDocument:
    """Build a document with only the overridden value."""
    place, path = _place_of(override), path_of(override)
    return document_with(path, parse_value(override.partition("=")[2], place), place)


def parse_value(text: str, place: Location) -> Any:
    """Parse a value on the command line as YAML; an empty one is null, as in a file.

    Raises:
        InputError: it is not YAML, at `place`.
    """
    node = compose(text, lambda line, column: place)
    return None if node is None else build(node, lambda *_: place)[0]


def _place_of(override: str) -> Location:
    return Location(f"--set {override}")


def path_of(override: str) -> tuple[str, ...]:
    """Parse the path of an override.

    Raises:
        InputError: the override has no "=", or its path has an empty part.
    """
    left, equals, _ = override.partition("=")
    path = tuple(part.strip() for part in left.split("."))
    if not equals or not all(path):
        message = 'has no "="' if not equals else f'the path "{left.strip()}" has an empty part'
        fix = 'write section.field=value, for example "--set parallelism.tensor=4"'
        raise InputError([Problem("E112", message, _place_of(override), fix=fix)])
    return path
