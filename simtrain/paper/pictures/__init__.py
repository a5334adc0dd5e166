"""The reproduced tables and figures as pictures, PNG and SVG. Draws the numbers and makes none."""

from __future__ import annotations

from pathlib import Path

from simtrain.figures.style import write_picture
from simtrain.paper.entries import Reproduced


def write_pictures(target: str, reproduced: Reproduced, folder: Path) -> tuple[Path, ...]:
    """Write `folder/TARGET.png` and `.svg`.

    Raises:
        InputError: the folder cannot be written to.
    """
    # matplotlib takes longer to import than most commands take to run.
    from simtrain.paper.pictures.drawings import draw

    return write_picture(lambda: draw(target, reproduced), folder / target)
