"""Kinds of files that users pass to commands, and the error about a file of another kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from simtrain.base.strict_yaml import Document, parse_document, read_text
from simtrain.errors import InputError, Location

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


def _line(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


SHELL = FileKind(
    "a shell script",
    _line(r"\A#![^\n]*sh\b|^#SBATCH |^(?:torchrun|srun) |^export [A-Za-z_]\w*="),
    "simtrain import megatron {file} --out scenario.yaml",
)
LOG = FileKind(
    "a log of Megatron-LM",
    _line(r"^[^\n-]{0,80}-{5,} arguments -{5,}"),
    "simtrain import megatron {file} --out scenario.yaml",
)
HUGGING_FACE = FileKind(
    "a config of a model on Hugging Face",
    re.compile(r'"(?:model_type|architectures)"\s{0,8}:'),
    "simtrain import hf {file} --out scenario.yaml",
    re.compile(r"\A\s{0,99}\{"),
)
TORCHTITAN = FileKind(
    "a job of torchtitan",
    _line(r"^\[(?:job|model|training|parallelism|optimizer|profiling|metrics)\][ \t]*$"),
    "simtrain import torchtitan {file} --out scenario.yaml",
)
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
KINDS = SHELL, LOG, HUGGING_FACE, TORCHTITAN, PROFILE, SWEEP, SCENARIO


def load_kind(path: Path, kind: FileKind) -> Document:
    """Read a YAML or JSON file of a kind.

    Raises:
        InputError: the file is of another kind (E116), or cannot be read.
    """
    text = read_text(path)
    refuse_other_kinds(text, str(path), kind)
    return parse_document(text, str(path))


def refuse_other_kinds(text: str, file: str, *kinds: FileKind) -> None:
    """Refuse a text that is clearly of another kind than `kinds` (E116).

    A text without a sign of any kind passes: its reader says what is wrong with it.
    """
    signs = [(kind, kind.sign.search(text)) for kind in KINDS]
    matches = [(kind, sign) for kind, sign in signs if sign and kind.other.search(text)]
    if not matches or any(kind in kinds for kind, _ in matches):
        return
    kind, sign = matches[0]
    line = text.count("\n", 0, sign.start()) + 1
    place = Location(file, line, 1, text.split("\n")[line - 1])
    message = f"this is {kind.noun}, not {kinds[0].noun}"
    raise InputError.of("E116", message, place, kind.command.format(file=file))
