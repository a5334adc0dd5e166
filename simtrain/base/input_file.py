"""Read files that users name, up to a limit of size.

Every reader of such files uses this module (`tests/base/test_input_file.py` checks that), because
a device may never end and a large file may fill the memory.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location

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
