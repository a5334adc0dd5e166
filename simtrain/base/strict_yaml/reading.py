"""Read YAML files and text into documents, with located errors."""

from __future__ import annotations

import copy
import difflib
import functools
import pathlib
import re
import stat
from collections.abc import Callable

from ruamel.yaml import YAML
from ruamel.yaml.composer import ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node
from ruamel.yaml.reader import ReaderError

from simtrain.base.strict_yaml.core_schema import CoreResolver, Locate, build
from simtrain.base.strict_yaml.document import Document
from simtrain.base.strict_yaml.json_text import read_json
from simtrain.errors import InputError, Location, Problem

_MOST_NAMES = 10
_MOST_BRACKETS = 100
_BRACKET = re.compile(r"[][{}]")
# Ten times the largest profile; the slowest YAML of this size takes seconds to parse.
MOST_BYTES_OF_YAML = 256 << 10
# Line breaks of YAML 1.2 and of ruamel's line counter.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def load_document(path: str | pathlib.Path) -> Document:
    """Read a YAML file whose root is a mapping.

    Raises:
        InputError: the file is missing, unreadable, not UTF-8, empty or broken; it has several
            documents, duplicate keys, anchors or tags; or its root is not a mapping.
    """
    return parse_document(read_text(pathlib.Path(path)), str(path))


def parse_document(text: str, file: str) -> Document:
    """Parse YAML text whose root is a mapping; `file` is its name in errors.

    Raises:
        InputError: as `load_document`.
    """
    document = _parsed(text, file)
    return Document(copy.deepcopy(document.data), document.positions)


# Parsing takes 20 ms, most of the time to load a scenario. Scripts load one with many overrides.
@functools.lru_cache(maxsize=64)
def _parsed(text: str, file: str) -> Document:
    lines = _LINE_BREAK.split(text)

    def locate(line: int, column: int) -> Location:
        source_line = lines[line] if line < len(lines) else ""
        return Location(file, line + 1, column + 1, source_line)

    _refuse_nesting(text, locate)
    if document := read_json(text, locate):
        return Document(*document)
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
    return Document(*build(node, locate))


def compose(text: str, locate: Locate) -> Node | None:
    """Parse the single document in `text` into a node tree; None if it is empty.

    Raises:
        InputError: broken YAML, several documents.
    """
    _refuse_nesting(text, locate)
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver = CoreResolver
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
    before = _LINE_BREAK.split(text[:index])
    return locate(len(before) - 1, len(before[-1]))


def read_text(
    path: pathlib.Path,
    most_bytes: int = MOST_BYTES_OF_YAML,
    check: Callable[[str], None] = lambda text: None,
) -> str:
    """Read a text file or a pipe of at most `most_bytes`.

    Args:
        path: the file.
        most_bytes: size up to which a file is read.
        check: is called with the text, or with the beginning of a file that is too large. Bytes
            that are not UTF-8 are replaced.

    Raises:
        InputError: the file is missing, unreadable, too large or not UTF-8, or is a device.
    """
    try:
        content = _content(path, most_bytes + 1)  # also a pipe ends here
    except FileNotFoundError as error:
        fix = similar_names_advice(path)
        raise InputError.of("E101", "no such file", Location(str(path)), fix) from error
    except IsADirectoryError as error:
        config = path / "config.json"
        fix = f"write {config}" if config.is_file() else "write the path of a file inside it"
        raise InputError.of("E102", "is a folder, not a file", Location(str(path)), fix) from error
    except (OSError, ValueError) as error:
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        fix = "check the name and its permissions"
        raise InputError.of("E102", message, Location(str(path)), fix) from error
    check(content.decode("utf-8", "replace"))
    if len(content) > most_bytes:
        message = f"has more than {most_bytes >> 10} KiB, the most that is read of a file like this"
        fix = "check the name, or keep only what is needed"
        raise InputError.of("E102", message, Location(str(path)), fix)
    return _decode(content, str(path))


def _content(path: pathlib.Path, most_bytes: int) -> bytes:
    kind = path.stat().st_mode
    if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        fix = "write the path of a file; reading a device may never end"
        raise InputError.of("E102", "is a device, not a file", Location(str(path)), fix)
    with path.open("rb") as file:
        return file.read(most_bytes)


def similar_names_advice(path: pathlib.Path) -> str:
    """Suggest existing files for a path without a file."""
    folder = path.parent
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError:
        return f"the folder {folder} cannot be read either: check the path"
    similar = difflib.get_close_matches(path.name, names)
    if similar:
        return f"did you mean {' or '.join(str(folder / name) for name in similar)}?"
    suffixes = (".yaml", ".yml") if path.suffix in ("", ".yaml", ".yml") else (path.suffix,)
    candidates = [str(folder / name) for name in names if name.endswith(suffixes)]
    if not candidates:
        return f"the folder {folder.absolute()} has no files {suffixes[0]}: check the path"
    more = f" and {len(candidates) - _MOST_NAMES} more"
    shown = ", ".join(candidates[:_MOST_NAMES])
    return f"files {suffixes[0]} here: {shown}{more if len(candidates) > _MOST_NAMES else ''}"


def _decode(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = _LINE_BREAK.split(content[: error.start].decode("utf-8", "replace"))
        place = Location(file, len(before), len(before[-1]) + 1)
        message = f"the byte 0x{content[error.start]:02X} is not UTF-8 text"
        raise InputError.of("E103", message, place, "save the file in UTF-8") from error
