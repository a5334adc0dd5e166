"""Read files that users name, up to a limit of size, and recognise their kinds.

Every reader of such files uses this module (`tests/base/test_input_file.py` checks that), because
a device may never end and a large file may fill the memory.
"""

from __future__ import annotations

import difflib
import errno
import functools
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.base.strict_yaml import YamlDocument

# Ten times the largest profile; the slowest YAML of this size takes seconds to parse.
MOST_BYTES_OF_YAML = 256 << 10
# Line breaks of YAML 1.1, which libyaml counts.
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file at a moment; a later version of it has another time or size."""

    file: str
    modified_ns: int
    num_bytes: int

    @classmethod
    def of(cls, file: str) -> FileVersion:
        """Return the present version of a file; of a missing one, too, which cannot be read."""
        try:
            status = os.stat(file)
        except OSError:
            return cls(file, 0, 0)
        return cls(file, status.st_mtime_ns, status.st_size)


def open_input(path: Path) -> BinaryIO:
    """Open a regular file or a pipe.

    Raises:
        OSError: the file cannot be opened, or is a device.
    """
    kind = path.stat().st_mode
    if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        raise OSError(errno.EINVAL, "is a device, not a file", str(path))
    return path.open("rb")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Read a file of at most `most_bytes`.

    Raises:
        OSError: the file cannot be opened, is a device, or is larger.
    """
    with open_input(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, _too_large(most_bytes), str(path))
    return content


def read_text(
    path: Path,
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
        with open_input(path) as file:
            content = file.read(most_bytes + 1)  # also a pipe ends here
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
        if getattr(error, "errno", None) == errno.EINVAL:
            message = "is a device, not a file"
            fix = "write the path of a file; reading a device may never end"
        raise InputError.of("E102", message, Location(str(path)), fix) from error
    check(content.decode("utf-8", "replace"))
    if len(content) > most_bytes:
        fix = "check the name, or keep only what is needed"
        raise InputError.of("E102", _too_large(most_bytes), Location(str(path)), fix)
    return _decode(content, str(path))


def _too_large(most_bytes: int) -> str:
    return f"has more than {most_bytes >> 10} KiB, the most that is read of a file like this"


def similar_names_advice(path: Path) -> str:
    """Suggest existing files for a path without a file."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"the folder {path.parent} cannot be read either: check the path"
    if similar := difflib.get_close_matches(path.name, sorted(names)):
        return f"did you mean {' or '.join(str(path.parent / name) for name in similar)}?"
    return f"the folder {path.parent.absolute()} has no file of a similar name: check the path"


def _decode(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = LINE_BREAK.split(content[: error.start].decode("utf-8", "replace"))
        place = Location(file, len(before), len(before[-1]) + 1)
        message = f"the byte 0x{content[error.start]:02X} is not UTF-8 text"
        raise InputError.of("E103", message, place, "save the file in UTF-8") from error


# Kinds of files that users pass to commands, and the error about a file of another kind.

MOST_BYTES_OF_LOG = 64 << 20  # a log is long; its arguments are at the beginning


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file.

    Args:
        noun: what it is, as in "this is a sweep".
        sign: pattern of a line that only files of this kind have.
        other: pattern of a second line that such a file has too, if one is not enough.
        command: what to do with it; {file} stands for its path.
    """

    noun: str
    sign: re.Pattern[str]
    command: str = "simtrain import {file} -o scenario.yaml"
    other: re.Pattern[str] = re.compile("")

    def sign_in(self, text: str) -> re.Match[str] | None:
        sign = self.sign.search(text)
        return sign if sign and self.other.search(text) else None


def _line(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


PROFILE = FileKind(
    "a hardware profile",
    _line(r"^gpu[ \t]*:"),
    "simtrain run SCENARIO --set cluster={file}",
    _line(r"^(?:gemm|memory_bound|intra_node)[ \t]*:"),
)
SWEEP = FileKind("a sweep", _line(r"^axes[ \t]*:"), "simtrain sweep {file} -o results")
SCENARIO = FileKind(
    "a scenario",
    _line(r"^(?:model|program)[ \t]*:"),
    "simtrain run {file}; or write a sweep with base: {file}",
    # Configs of other tools have a section of this name too.
    _line(r"\A(?![\s\S]*^(?:trainer|_target_)[ \t]*:)"),
)
_SHIPPED = PROFILE, SWEEP, SCENARIO
_TEXTS = (
    FileKind(
        "a trace of PyTorch's profiler or of another tool",
        re.compile(r'"(?:traceEvents|deviceProperties)"\s{0,8}:'),
        "open it in https://ui.perfetto.dev; simtrain run SCENARIO -o trace.json writes the "
        "simulated one",
        re.compile(r"\A\s{0,99}[\[{]"),
    ),
    FileKind(
        "a log of nccl-tests",
        _line(r"^#[ \t]{1,9}(?:nThread[ \t]+\d|out-of-place|size[ \t]+count[ \t]+type)"),
        "simtrain calibrate fit {file} --base PROFILE -o profile.yaml",
    ),
    FileKind(
        "a program in Python",
        _line(r"^(?:import [\w., ]+|from [\w.]+ import .+|def \w+\(.*|class \w+.*:)$"),
        "simtrain import LAUNCH.sh, the script that launches it; or simtrain import --record "
        "{file}:FUNCTION",
    ),
)
_BINARY = FileKind(
    "a binary file",
    re.compile(r"\A(?!\ufffd)[^\x00]{0,9999}\x00"),
    "write the path of a text file",
)
"""Files without text. Bytes that are not UTF-8 are U+FFFD, with which UTF-16 begins."""


def load_kind(path: Path, *kinds: FileKind) -> YamlDocument:
    """Read a YAML or JSON file of one of some kinds.

    Raises:
        InputError: the file is of another kind (E116), or cannot be read.
    """
    from simtrain.base.strict_yaml import parse_document

    return parse_document(text_of_kind(path, *kinds), str(path))


def text_of_kind(path: Path, *kinds: FileKind, most_bytes: int = 0) -> str:
    """Read a text file of one of some kinds.

    Args:
        path: the file.
        kinds: what it may be.
        most_bytes: size up to which it is read; 0 for that of YAML files.

    Raises:
        InputError: the file is of another kind (E116), or cannot be read.
    """
    check = functools.partial(_refuse_other_kinds, str(path), kinds)
    return read_text(path, most_bytes or MOST_BYTES_OF_YAML, check)


def _refuse_other_kinds(file: str, kinds: tuple[FileKind, ...], text: str) -> None:
    """Refuse a text that is clearly of another kind than `kinds` (E116).

    A text without a sign of any kind passes: its reader says what is wrong with it.
    """
    is_binary = _BINARY.sign_in(text) is not None
    if not is_binary and any(kind.sign_in(text) for kind in kinds):
        return
    # An importer knows its files. Most files are of the expected kind, and need none.
    from simtrain.base.importer import importers

    others = [kind for importer in importers() for kind in importer.kinds]
    for kind in (_BINARY, *others, *_SHIPPED, *_TEXTS):
        if sign := kind.sign_in(text):
            break
    else:
        return
    place = Location(file)
    if not is_binary:
        line = text.count("\n", 0, sign.start()) + 1
        place = Location(file, line, 1, text.split("\n")[line - 1])
    message = f"this is {kind.noun}, not {kinds[0].noun}"
    raise InputError.of("E116", message, place, kind.command.format(file=file))
