"""Kinds of files that users pass to commands, and the error about a file of another kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.base.strict_yaml import YamlDocument

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
    _line(r"^(?:model|program)[ \t]*:"),
    "simtrain run {file}; or write a sweep with base: {file}",
    # Configs of other tools have a section of this name too.
    _line(r"\A(?![\s\S]*^(?:trainer|_target_)[ \t]*:)"),
)
_SHIPPED = PROFILE, SWEEP, SCENARIO
_TEXTS = (
    FileKind(
        "a trace of PyTorch's profiler or of another tool",
        re.compile(r'"(?:traceEvents|deviceProperties)"\s{0,8}:'),
        "open it in https://ui.perfetto.dev; simtrain run SCENARIO -o trace.json writes the "
        "simulated one",
        re.compile(r"\A\s{0,99}[\[{]"),
    ),
    FileKind(
        "a log of nccl-tests",
        _line(r"^#[ \t]{1,9}(?:nThread[ \t]+\d|out-of-place|size[ \t]+count[ \t]+type)"),
        "python -m calibrate nccl-tests {file} --base PROFILE -o profile.yaml",
    ),
    FileKind(
        "a program in Python",
        _line(r"^(?:import [\w., ]+|from [\w.]+ import .+|def \w+\(.*|class \w+.*:)$"),
        "simtrain import megatron LAUNCH.sh, the script that launches it; or simtrain import "
        "torchtitan {file}, if its functions return configs",
    ),
    FileKind(
        "a picture",
        re.compile(
            r"\A\s{0,9}(?:<\?xml[^>]{0,200}>\s{0,9})?(?:<!--.{0,500}-->\s{0,9})?"
            r"<(?:svg|!DOCTYPE svg)"
        ),
        "write the path of a scenario (YAML); simtrain show scenarios lists them",
    ),
    FileKind(
        "a page in HTML",
        re.compile(r"\A\s{0,9}<(?:!doctype html|html)", re.IGNORECASE),
        "open it in a browser; simtrain show scenarios lists what can be simulated",
    ),
)
_CONFIG = "simtrain import hf config.json, of the same model"
_BINARY = (
    FileKind("a file of weights", re.compile(r'\A[^{]{1,7}\x00\{[ \t]{0,9}"'), _CONFIG),
    FileKind("a zip archive or a checkpoint of PyTorch", re.compile(r"\APK\x03\x04"), _CONFIG),
    FileKind(
        "a picture or a PDF",
        re.compile(r"\A(?:\ufffdPNG|\ufffd{3,4}|GIF8[79]a|%PDF-|RIFF.{4}WEBP)", re.DOTALL),
        "write the path of a scenario (YAML); simtrain show scenarios lists them",
    ),
    FileKind(
        "a compressed file",
        re.compile(r"\A(?:\x1f\ufffd|BZh\d1AY|\ufffd7zXZ|\(\ufffd/\ufffd)"),
        "unpack {file}",
    ),
    FileKind(
        "a binary file",
        re.compile(r"\A(?!\ufffd)[^\x00]{0,9999}\x00"),
        "write the path of a text file",
    ),
)
"""Kinds of files without text. Bytes that are not UTF-8 are U+FFFD, with which UTF-16 begins."""


def load_kind(path: Path, *kinds: FileKind) -> YamlDocument:
    """Read a YAML or JSON file of one of some kinds.

    Raises:
        InputError: the file is of another kind (E116), or cannot be read.
    """
    from simtrain.base.strict_yaml import parse_document

    return parse_document(text_of_kind(path, *kinds), str(path))


def text_of_kind(path: Path, *kinds: FileKind, most_bytes: int = 0) -> str:
    """Read a text file of one of some kinds.

    Args:
        path: the file.
        kinds: what it may be.
        most_bytes: size up to which it is read; 0 for that of YAML files.

    Raises:
        InputError: the file is of another kind (E116), or cannot be read.
    """
    from simtrain.base.input_file import MOST_BYTES_OF_YAML, read_text

    def check(text: str) -> None:
        refuse_other_kinds(text, str(path), *kinds)

    return read_text(path, most_bytes or MOST_BYTES_OF_YAML, check)


def refuse_other_kinds(text: str, file: str, *kinds: FileKind) -> None:
    """Refuse a text that is clearly of another kind than `kinds` (E116).

    A text without a sign of any kind passes: its reader says what is wrong with it.
    """
    is_binary = any(kind.sign_in(text) for kind in _BINARY)
    if not is_binary and any(kind.sign_in(text) for kind in kinds):
        return
    # An importer knows its files. Most files are of the expected kind, and need none.
    from simtrain.base.importer import importers

    others = [kind for importer in importers() for kind in importer.kinds]
    for kind in (*_BINARY, *others, *_SHIPPED, *_TEXTS):
        if sign := kind.sign_in(text):
            break
    else:
        return
    place = Location(file)
    if not is_binary:
        line = text.count("\n", 0, sign.start()) + 1
        place = Location(file, line, 1, text.split("\n")[line - 1])
    message = f"this is {kind.noun}, not {kinds[0].noun}"
    raise InputError.of("E116", message, place, kind.command.format(file=file))
