"""Folders that commands write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simtrain.errors import InputError, Location, Problem
from simtrain.extras import require


def make_folder(folder: Path, what: str) -> None:
    """Make the folder that something is to be written into, unless it is there.

    Raises:
        InputError: it cannot be made.
    """
    with writing_to(folder, what):
        folder.mkdir(parents=True, exist_ok=True)


def make_picture_folder(folder: Path) -> None:
    """Make the folder that pictures are to be written into, if they can be drawn.

    Raises:
        InputError: matplotlib is not installed; the folder cannot be made.
    """
    require("drawing pictures", "matplotlib")
    make_folder(folder, "pictures")


@contextmanager
def writing_to(folder: Path, what: str) -> Iterator[None]:
    """Within, a folder that cannot be written to is told as an InputError."""
    try:
        yield
    except OSError as error:
        place = Location(str(error.filename or folder))
        message = f"cannot write {what} here: {error.strerror}"
        fix = "give --out a folder that can be written to"
        raise InputError([Problem("E113", message, place, fix=fix)]) from error


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        InputError: it is there, or cannot be written.
    """
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        fix = "name a file that is not there yet, or remove this one"
        raise InputError.of("E113", "the file exists", Location(str(file)), fix) from error
    except OSError as error:
        message = f"cannot be written: {error.strerror}"
        raise InputError.of("E113", message, Location(str(file)), "name another file") from error
