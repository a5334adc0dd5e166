"""Draw the pictures of the documents from the commands that their pages show."""

import hashlib
import pathlib
import re
import shutil
from collections.abc import Iterator

from docs.update.commands import folder, printed
from docs.update.documents import ROOT, blocks, documents, text_of
from simtrain.base.resources import find_profile
from simtrain.base.version import VERSION

_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w/]*?(\w+)\.svg)\)")
_PROFILE = re.compile(r"(\w+) \(SHA-256 (\w+)\)")
_VERSION = re.compile(r"· simtrain ([\w.]+) -->")


def pictures() -> dict[pathlib.Path, tuple[str, list[str]]]:
    """Return for each picture the page that shows it, and the commands that draw it.

    A picture is named after the file that a command writes, after a sweep, or after a target of
    `simtrain reproduce`.
    """
    found = {}
    for page in documents():
        lines = [line for block in blocks(page) for line in block.text.splitlines()]
        for link, name in _PICTURE.findall(text_of(page)):
            sweep = [line for line in lines if line.endswith(f" -o {name}")]
            plots = [line for line in lines if line.startswith(f"simtrain sweep {name} --axes")]
            file = [line for line in lines if line.endswith(f" -o {name}.svg")]
            path = (ROOT / page).parent / link
            reproduce = [f"simtrain reproduce {name} -o {name}/pictures"]
            found[path] = page, [*sweep, *plots[-1:]] or file or reproduce
    return found


def draw() -> None:
    """Draw all pictures."""
    for path, (page, commands) in pictures().items():
        for command in commands:
            printed(page, command)
        working = pathlib.Path(folder(page).name)
        drawn = working / path.stem / "pictures"
        names = drawn / "heat_map.svg", drawn / path.name, working / path.name
        (source,) = filter(pathlib.Path.is_file, names)
        shutil.copyfile(source, path)
        print(f"drew {path.relative_to(ROOT)}")


def stale_pictures() -> Iterator[str]:
    """Yield a line for each picture whose footer names an old profile or version.

    Reads only the footers, and draws nothing. A picture may be stale although its footer is
    current: if the code changes but not the profile. Tests compare the numbers in the pictures.
    """
    for path in pictures():
        for reason in footer_differences(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(ROOT)}: {reason}; run python -m docs.update --pictures"


def footer_differences(picture: str) -> list[str]:
    """Return how the footer of an SVG differs from the current profiles and version."""
    profiles, versions = _PROFILE.findall(picture), _VERSION.findall(picture)
    if not profiles or not versions:
        return ["has no footer with profile and version"]
    changed = []
    for name, digest in profiles:
        current = hashlib.sha256(find_profile(name).read_bytes()).hexdigest()
        if not current.startswith(digest):
            changed.append(f"has profile {name} {digest}, now {current[: len(digest)]}")
    return changed + [f"has version {one}, now {VERSION}" for one in versions if one != VERSION]
