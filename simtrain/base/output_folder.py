"""Folders and files that commands write to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from simtrain.base.extras import require
from simtrain.errors import InputError, Location, wrong_type


def as_path(value: object) -> Path:
    """Return a path from Python; refuse another object (E114)."""
    if not isinstance(value, (str, os.PathLike)):
        raise wrong_type(value, "path", 'write a path as text, such as "results"')
    return Path(value)


def make_folder(folder: Path, what: str) -> None:
    """Create the folder of -o for `what`; an InputError (E113) if that is impossible."""
    with writing_to(folder, what):
        folder.mkdir(parents=True, exist_ok=True)


def make_picture_folder(folder: Path) -> None:
    """Create an output folder for pictures, which need matplotlib (E701)."""
    require("drawing pictures", "matplotlib")
    make_folder(folder, "pictures")


@contextmanager
def writing_to(folder: Path, what: str, option: str = "-o") -> Iterator[None]:
    """Convert an OSError while writing to a folder, which `option` chose, into an InputError."""
    try:
        yield
    except OSError as error:
        place = Location(str(error.filename or folder))
        message = f"cannot write {what} here: {error.strerror}"
        fix = f"choose a writable folder with {option}"
        if isinstance(error, FileNotFoundError) and not folder.parent.exists():
            fix = f"create the folder {folder.parent}, or choose another one with {option}"
        raise InputError.of("E113", message, place, fix) from error


@contextmanager
def replacing(file: Path, unfinished_name: str = ".simtrain") -> Iterator[Path]:
    """Yield a path to write to; what is written there replaces `file` when the block ends.

    If the block fails or Ctrl-C ends it, an older file stays as it was. Pipes and devices are
    written directly. A killed process leaves a file whose name begins with `unfinished_name`.

    Raises:
        OSError: the file cannot be written.
    """
    if file.exists() and not file.is_file():
        yield file
        return
    target = Path(os.path.realpath(file))  # a link stays a link
    # The suffix stays, because it tells matplotlib the format.
    unfinished = target.with_name(f"{unfinished_name}-{secrets.token_hex(8)}{target.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, target)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(unfinished):
            error.filename = str(file)
        raise


def check_writable(file: Path, what: str) -> None:
    """Check that a file of -o can be written, before the work that it needs.

    If not, it is an InputError (E113). Opening a pipe would end its reader: pipes and devices are
    not checked.
    """
    with writing_to(file, what):
        if file.is_fifo() or file.is_char_device():
            return
        target = Path(os.path.realpath(file))  # a link may name a file that does not exist yet
        is_new = not target.exists()
        file.open("ab").close()
        if is_new:
            target.unlink()


def check_suffix(file: Path, known: Sequence[str], what: str) -> None:
    """Refuse a file for `what` whose name ends with none of the `known` suffixes (E117)."""
    name = file.name.lower()
    if not any(name.endswith(suffix) and name != suffix for suffix in known):
        message = f"the name does not say which format {what} have"
        fix = f"end it with {', '.join(known[:-1])} or {known[-1]}"
        raise InputError.of("E117", message, Location(str(file)), fix)


def write_text(file: Path, text: str, what: str, option: str = "-o") -> None:
    """Write a file for `what`, which `option` chose, or replace it (E113 if that is impossible)."""
    with writing_to(file, what, option), replacing(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


def check_new(file: Path, replaces: bool | None = None) -> None:
    """Refuse a file that exists (E113).

    Args:
        file: the file.
        replaces: whether a file that exists is replaced; None if no option says so.
    """
    if file.is_dir() or (file.is_file() and not replaces):
        fix = "choose another name"
        if file.is_file():
            fix += ", or " + ("remove this file" if replaces is None else "add --force")
        raise InputError.of("E113", "the file exists", Location(str(file)), fix)


def write_new(file: Path, text: str, replaces: bool | None = None) -> None:
    """Write a file that does not exist, as `write_text` and `check_new` do."""
    check_new(file, replaces)
    write_text(file, text, "a file")
