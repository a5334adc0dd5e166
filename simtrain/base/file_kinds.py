"""Kinds of files that users pass to commands, and the error about a file of another kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.base.strict_yaml import Document

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
    command: str
    other: re.Pattern[str] = re.compile("")

    def sign_in(self, text: str) -> re.Match[str] | None:
        """Return the sign in the text of a file of this kind; None in another text."""
        sign = self.sign.search(text)
        return sign if sign and self.other.search(text) else None


def import_line(name: str) -> str:
    """Return what to do with a file that an importer reads."""
    return f"simtrain import {name} {{file}} --out scenario.yaml"


def _line(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


PROFILE = FileKind(
    "a hardware profile",
    _line(r"^gpu[ \t]*:"),
    "simtrain run SCENARIO --set cluster={file}",
    _line(r"^(?:gemm|memory_bound|intra_node)[ \t]*:"),
)
SWEEP = FileKind("a sweep", _line(r"^axes[ \t]*:"), "simtrain sweep {file} --out results")
SCENARIO = FileKind(
    "a scenario",
    _line(r"^model[ \t]*:"),
    "simtrain run {file}; or write a sweep with base: {file}",
)
_SHIPPED = PROFILE, SWEEP, SCENARIO


def load_kind(path: Path, *kinds: FileKind) -> Document:
    """Read a YAML or JSON file of one of some kinds.

    Raises:
        InputError: the file is of another kind (E116), or cannot be read.
    """
    from simtrain.base.strict_yaml import parse_document, read_text

    text = read_text(path)
    refuse_other_kinds(text, str(path), *kinds)
    return parse_document(text, str(path))


def refuse_other_kinds(text: str, file: str, *kinds: FileKind) -> None:
    """Refuse a text that is clearly of another kind than `kinds` (E116).

    A text without a sign of any kind passes: its reader says what is wrong with it.
    """
    if any(kind.sign_in(text) for kind in kinds):
        return
    # An importer knows its files. Most files are of the expected kind, and need none.
    from simtrain.importing.importers.registry import IMPORTERS

    others = [kind for importer in IMPORTERS for kind in importer.kinds]
    for kind in (*others, *_SHIPPED):
        if sign := kind.sign_in(text):
            break
    else:
        return
    line = text.count("\n", 0, sign.start()) + 1
    place = Location(file, line, 1, text.split("\n")[line - 1])
    message = f"this is {kind.noun}, not {kinds[0].noun}"
    raise InputError.of("E116", message, place, kind.command.format(file=file))
