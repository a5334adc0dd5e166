"""The reproduced tables and figures as pictures, PNG and SVG. Draws the numbers and makes none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simtrain.errors import InputError, Location, Problem
from simtrain.paper.everything import Reproduced


def make_folder(folder: Path) -> None:
    """Make the folder that pictures are to be written into, unless it is there.

    Raises:
        InputError: it cannot be made.
    """
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_pictures(target: str, reproduced: Reproduced, folder: Path) -> tuple[Path, ...]:
    """Write `folder/TARGET.png` and `.svg`; the same numbers always give the same bytes.

    Raises:
        InputError: the folder cannot be written to.
    """
    # matplotlib takes longer to import than most commands take to run.
    from simtrain.paper.pictures.drawings import draw
    from simtrain.paper.pictures.style import save, styled

    with styled(), _told(folder):
        return save(draw(target, reproduced), folder / target)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"cannot write pictures here: {error.strerror}"
        fix = "give --out a folder that can be written to"
        raise InputError([Problem("E113", message, Location(str(folder)), fix=fix)]) from error
