"""Draws the pictures of the documents again, from the commands that their pages show."""

import pathlib
import re
import shutil

from docs.update.commands import folder, printed
from docs.update.documents import ROOT, blocks, documents, text_of

_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w/]*?(\w+)\.svg)\)")


def pictures() -> dict[pathlib.Path, tuple[str, list[str]]]:
    """Each picture: the page that shows it, and the commands that draw it.

    A picture has the name of the sweep, or of the target of `simtrain reproduce`, that it shows.
    """
    found = {}
    for page in documents():
        lines = [line for block in blocks(page) for line in block.text.splitlines()]
        for link, name in _PICTURE.findall(text_of(page)):
            sweep = [line for line in lines if line.endswith(f" --out {name}")]
            plots = [line for line in lines if line.startswith(f"simtrain plot {name} ")]
            path = (ROOT / page).parent / link
            reproduce = [f"simtrain reproduce {name} --out {name}/pictures"]
            found[path] = page, [*sweep, *plots[-1:]] or reproduce
    return found


def draw() -> None:
    """Draw all pictures."""
    for path, (page, commands) in pictures().items():
        for command in commands:
            printed(page, command)
        drawn = pathlib.Path(folder(page).name) / path.stem / "pictures"
        (source,) = [*drawn.glob("heat_map.svg"), *drawn.glob(f"{path.stem}.svg")]
        shutil.copyfile(source, path)
        print(f"drew {path.relative_to(ROOT)}")
