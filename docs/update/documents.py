"""Documents, their fenced blocks, and the files that they tell readers to write."""

import pathlib
import re
import shutil
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[2]
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_WRITTEN = ("yaml", "bash", "json", "toml", "csv", "py")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document."""

    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """File that a reader writes with this text. The first line names it."""
        if self.language == "json":
            return "config.json" if '"model_type"' in self.text else "ds_config.json"
        named = re.match(r"# ([\w.]+\.\w+)\n", self.text)
        return named[1] if named and self.language in _WRITTEN else None


def documents() -> list[str]:
    """Return the paths of README.md and of all pages of docs/ in the repository."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(page.relative_to(ROOT).as_posix() for page in pages)]


def text_of(document: str) -> str:
    """Return the text of a document."""
    return (ROOT / document).read_text(encoding="utf-8")


def blocks_in(text: str) -> list[Block]:
    """Return the fenced blocks of a text."""
    return [Block(language, block) for _, language, block in _FENCED.findall(text)]


def blocks(document: str) -> list[Block]:
    """Return the fenced blocks of a document."""
    return blocks_in(text_of(document))


def write_files(folder: pathlib.Path) -> None:
    """Write the files that documents tell readers to write, and tables of measured runs."""
    shutil.copytree(ROOT / "docs/measured_runs", folder / "docs/measured_runs")
    for document in documents():
        for block in blocks(document):
            if block.file_name:
                (folder / block.file_name).write_text(block.text, encoding="utf-8")
