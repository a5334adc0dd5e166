"""Read YAML files and text into documents, with located errors."""

from __future__ import annotations

import copy
import functools
import pathlib
import re

from ruamel.yaml import YAML
from ruamel.yaml.composer import ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node
from ruamel.yaml.reader import ReaderError

from simtrain.base.input_file import LINE_BREAK, read_text
from simtrain.base.strict_yaml.core_schema import CoreResolver, Locate, build
from simtrain.base.strict_yaml.document import YamlDocument
from simtrain.base.strict_yaml.json_text import read_json
from simtrain.errors import InputError, Location, Problem

_MOST_BRACKETS = 100
_BRACKET = re.compile(r"[][{}]")


def load_document(path: str | pathlib.Path) -> YamlDocument:
    """Read a YAML file whose root is a mapping.

    Raises:
        InputError: the file is missing, unreadable, not UTF-8, empty or broken; it has several
            documents, duplicate keys, anchors or tags; or its root is not a mapping.
    """
    return parse_document(read_text(pathlib.Path(path)), str(path))


def parse_document(text: str, file: str) -> YamlDocument:
    """Parse YAML text whose root is a mapping; `file` is its name in errors.

    Raises:
        InputError: as `load_document`.
    """
    document = _parsed(text, file)
    return YamlDocument(copy.deepcopy(document.data), document.positions)


# Parsing takes 20 ms, most of the time to load a scenario. Scripts load one with many overrides.
@functools.lru_cache(maxsize=64)
def _parsed(text: str, file: str) -> YamlDocument:
    lines = LINE_BREAK.split(text)

    def locate(line: int, column: int) -> Location:
        source_line = lines[line] if line < len(lines) else ""
        return Location(file, line + 1, column + 1, source_line)

    _refuse_nesting(text, locate)
    if document := read_json(text, locate):
        return YamlDocument(*document)
    node = compose(text, locate)
    if node is None:
        raise InputError.of(
            "E105", "the file is empty", Location(file), "write at least one section"
        )
    if not isinstance(node, MappingNode):
        place = locate(node.start_mark.line, node.start_mark.column)
        raise InputError.of(
            "E108",
            "the file does not contain a mapping of sections",
            place,
            'write "section:" lines with indented "name: value" lines under them',
        )
    return YamlDocument(*build(node, locate))


def compose(text: str, locate: Locate) -> Node | None:
    """Parse the single document in `text` into a node tree; None if it is empty.

    Raises:
        InputError: broken YAML, several documents.
    """
    _refuse_nesting(text, locate)
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver = CoreResolver
    yaml.composer.warn_double_anchors = False  # anchors are refused below
    try:
        node: Node | None = yaml.compose(text)
    except MarkedYAMLError as error:
        raise InputError([_broken(error, locate)]) from error
    except ReaderError as error:
        place = _place_of_index(text, error.position, locate)
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise InputError.of("E106", message, place, "remove the character") from error
    except RecursionError as error:
        place = locate(0, 0)
        raise InputError.of("E106", "nested too deeply to read", place, "flatten it") from error
    except (YAMLError, ValueError, OverflowError) as error:
        # Python refuses the character number of an escape such as \U99999999.
        raise InputError.of("E106", f"broken YAML: {error}", locate(0, 0), "correct it") from error
    return node


def _refuse_nesting(text: str, locate: Locate) -> None:
    """Refuse brackets that are nested deeply: parsing takes time with their number's square."""
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > _MOST_BRACKETS:
            place = _place_of_index(text, bracket.start(), locate)
            raise InputError.of("E106", "nested too deeply to read", place, "flatten it")


def _broken(error: MarkedYAMLError, locate: Locate) -> Problem:
    place = _place_of_error(error, locate)
    if isinstance(error, ComposerError) and "single document" in str(error.context):
        return Problem(
            "E104",
            "a second document starts here",
            place,
            reason="a file has one document",
            fix="move it to another file",
        )
    what = ", ".join(str(part) for part in (error.context, error.problem) if part)
    return Problem("E106", f"broken YAML: {what}", place, fix=_advice(place))


def _place_of_error(error: MarkedYAMLError, locate: Locate) -> Location:
    """Position of the error, or of the opening bracket or quote that is never closed."""
    marks = [mark for mark in (error.problem_mark, error.context_mark) if mark is not None]
    places = [locate(mark.line, mark.column) for mark in marks]
    return next((place for place in places if place.source_line), places[-1])


def _advice(place: Location) -> str:
    before_caret = place.source_line[: place.column]
    if "\t" in before_caret and not before_caret.strip():
        return "indent with spaces: YAML does not allow tabs there"
    return "check the indentation, quotes, colons and brackets up to the caret"


def _place_of_index(text: str, index: int, locate: Locate) -> Location:
    before = LINE_BREAK.split(text[:index])
    return locate(len(before) - 1, len(before[-1]))
