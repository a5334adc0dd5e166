"""The reproduced tables and figures as pictures, PNG and SVG. Draws the numbers and makes none."""

from __future__ import annotations

from pathlib import Path

from simtrain.paper.everything import Reproduced
from simtrain.pictures import writing_to


def write_pictures(target: str, reproduced: Reproduced, folder: Path) -> tuple[Path, ...]:
    """Write `folder/TARGET.png` and `.svg`; the same numbers always give the same bytes.

    Raises:
        InputError: the folder cannot be written to.
    """
    # matplotlib takes longer to import than most commands take to run.
    from simtrain.paper.pictures.drawings import draw
    from simtrain.pictures.style import save, styled

    with styled(), writing_to(folder):
        return save(draw(target, reproduced), folder / target)
