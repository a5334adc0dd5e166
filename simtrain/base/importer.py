"""Kinds of files that users name, and the importers that read those of other tools.

Importers are plug-ins (entry points `simtrain.importers`), those of simtrain too. Their modules
import scenarios in functions or for types only: `--help` lists the importers, and files of another
kind are recognised by them.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from simtrain.base.input_file import MOST_BYTES_OF_YAML, open_input, read_text
from simtrain.base.plug_ins import Parts
from simtrain.base.values import dataclass, field
from simtrain.errors import InputError, Location, wrong_type

if TYPE_CHECKING:
    from simtrain.base.strict_yaml import YamlDocument

# Kinds of files that users pass to commands, and the error about a file of another kind.

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
    command: str = "simtrain import {file} -o scenario.yaml"
    other: re.Pattern[str] = re.compile("")

    def sign_in(self, text: str) -> re.Match[str] | None:
        sign = self.sign.search(text)
        return sign if sign and self.other.search(text) else None


def _line(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


PROFILE = FileKind(
    "a hardware profile",
    _line(r"^gpu[ \t]*:"),
    "simtrain run SCENARIO --set cluster={file}",
    _line(r"^(?:gemm|memory_bound|intra_node)[ \t]*:"),
)
SWEEP = FileKind("a sweep", _line(r"^axes[ \t]*:"), "simtrain sweep {file} -o results")
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
        "simtrain calibrate fit {file} --base PROFILE -o profile.yaml",
    ),
    FileKind(
        "a program in Python",
        _line(r"^(?:import [\w., ]+|from [\w.]+ import .+|def \w+\(.*|class \w+.*:)$"),
        "simtrain import LAUNCH.sh, the script that launches it; or simtrain import --record "
        "{file}:FUNCTION",
    ),
)
_BINARY = FileKind(
    "a binary file",
    re.compile(r"\A(?!\ufffd)[^\x00]{0,9999}\x00"),
    "write the path of a text file",
)
"""Files without text. Bytes that are not UTF-8 are U+FFFD, with which UTF-16 begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import, and what its source leaves open.

    Args:
        source: a launch script, a log, a training config or a model's config.json, or its folder.
        gpus: number of GPUs, in place of what the file says.
        overrides: fields to set, such as "parallelism.tensor=8".
        env: values of variables of a script that it does not decide, such as {"NNODES": "4"}.
        model: the model's config.json, if it is not in the folder of the source.
        ignore_unknown: leave out settings that simtrain does not know, and list them. Commands
            other than import always do.
        capture: run the script in your shell, with recorders in place of torchrun, python, srun and
            others, and import what it would start. Only this option runs your script.
    """

    source: str | PathLike[str] = field(kw_only=False)
    gpus: int | None = None
    overrides: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    model: str | PathLike[str] = ""
    ignore_unknown: bool = False
    capture: bool = False

    def __post_init__(self) -> None:
        """Refuse values of wrong types, which Python may pass (E114)."""
        for path in (self.source, self.model):
            if not isinstance(path, (str, PathLike)):
                raise wrong_type(path, "path", 'write a path as text, such as "results"')
        if self.gpus is not None and (type(self.gpus) is not int or self.gpus < 1):
            fix = "write a whole number of at least 1"
            raise InputError.of("E114", f"gpus is {self.gpus!r}", fix=fix)
        env = {} if self.env is None else self.env
        if not isinstance(env, Mapping) or not all(
            isinstance(word, str) for pair in env.items() for word in pair
        ):
            fix = 'write env={"NNODES": "4"}'
            raise InputError.of("E114", f"env is {env!r:.80}, not a dict of texts", fix=fix)

    @property
    def file(self) -> str:
        return str(self.source)

    def check_read_by(self, importer: Importer | None) -> None:
        """Refuse what an importer does not read, or a scenario of simtrain (E908)."""
        message = "is only for files of other tools, which are imported"
        if importer:
            message = f"has no effect on {importer.kinds[0].noun}"
        has_variables = importer is not None and importer.reads_variables
        for option, value, is_read in (
            ("--env", self.env, has_variables),
            ("--model", self.model, importer is not None and importer.reads_model),
            ("--capture", self.capture, has_variables),
        ):
            if value and not is_read:
                raise InputError.of("E908", message, Location(option), "remove it")

    def text(self, importer: Importer) -> str:
        """Return the text of the source, a file of an importer's kinds.

        Raises:
            InputError: the file cannot be read, or is of another kind (E116).
        """
        return text_of_kind(Path(self.source), *importer.kinds)


class Importer(ABC):
    """Converts what another tool reads or writes to a scenario."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[FileKind, ...]]
    """The kinds of files that it reads, which `simtrain import FILE` recognises by their signs."""
    reads_model: ClassVar[bool] = False
    """Whether the model can be in another file, which `--model` names."""
    reads_variables: ClassVar[bool] = False
    """Whether a source can have variables, whose values `--env` says."""
    place: ClassVar[int] = 100
    """Of a file with the signs of several importers, the lowest counts; equal ones are an error."""
    is_model: ClassVar[bool] = False
    """Whether a source describes a model alone, without GPUs and batch."""

    def captured(self, request: ImportRequest) -> ImportRequest:
        """Run a script with variables, and return the request for what it starts (`--capture`)."""
        return request

    @abstractmethod
    def draft(self, request: ImportRequest) -> Any:
        """Return the draft of a scenario (`simtrain.guests.importing.draft.Draft`).

        Raises:
            InputError: the source cannot be read, or has unknown or invalid settings.
        """


_IMPORTERS = Parts[Importer]("importers", Importer, ())


def importers() -> list[Importer]:
    """Return all importers, in the order in which they are tried."""
    return sorted(_IMPORTERS.values(), key=lambda importer: (importer.place, importer.name))


def importer_of_file(source: str | PathLike[str]) -> Importer | None:
    """Return the importer of a file, or of a folder with a config.json.

    None for scenarios, unknown files and what is no file.

    Raises:
        InputError: the file has the signs of several importers (E741).
    """
    with suppress(OSError, ValueError):
        path = _file_of(source)
        if path.is_file():  # a pipe can be read only once
            with open_input(path) as file:
                text = file.read(MOST_BYTES_OF_LOG).decode("utf-8", "replace")
            return _importer_of(text, str(path))
    return None


def needed_importer(source: str) -> Importer:
    """Return the importer of a file that must have one.

    Raises:
        InputError: the file cannot be read, is no file of another tool (E116), or has the signs of
            no importer or of several (E741).
    """
    path = _file_of(source)
    if _NAME_OF_MODEL.fullmatch(source) and not path.exists():
        message = "there is no such file; it reads like the name of a model on Hugging Face"
        fix = f"hf download {source} config.json --local-dir . && simtrain import config.json"
        raise InputError.of("E101", message, Location(source), fix)
    kinds = [kind for each in importers() for kind in each.kinds]
    other = FileKind("a file of another tool", re.compile(r"\Z."))
    text = text_of_kind(path, other, *kinds, most_bytes=MOST_BYTES_OF_LOG)
    if importer := _importer_of(text, source):
        return importer
    nouns = ", ".join(dict.fromkeys(kind.noun for kind in kinds))
    message, reason = "has the sign of no file that can be imported", f"these have one: {nouns}"
    raise InputError.of("E741", message, Location(source), "write the path of one", reason)


_NAME_OF_MODEL = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def _file_of(source: str | PathLike[str]) -> Path:
    inside = Path(source, "config.json")
    return inside if inside.is_file() else Path(source)


def _importer_of(text: str, file: str) -> Importer | None:
    """Return the importer of a file with this text; None for scenarios and unknown files."""
    signs = [
        (each, kind, sign)
        for each in importers()
        for kind in each.kinds
        if (sign := kind.sign_in(text))
    ]
    first = [each for each in signs if each[0].place == signs[0][0].place]
    if len({each.name for each, _, _ in first}) > 1:
        lines = [(kind.noun, text.count("\n", 0, sign.start()) + 1) for _, kind, sign in first]
        message = f"may be {' or '.join(f'{noun} (line {line})' for noun, line in lines)}"
        fix = "remove the lines that belong to another tool"
        raise InputError.of("E741", message, Location(file, max(line for _, line in lines)), fix)
    return signs[0][0] if signs else None


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
    check = functools.partial(_refuse_other_kinds, str(path), kinds)
    return read_text(path, most_bytes or MOST_BYTES_OF_YAML, check)


def _refuse_other_kinds(file: str, kinds: tuple[FileKind, ...], text: str) -> None:
    """Refuse a text that is clearly of another kind than `kinds` (E116).

    A text without a sign of any kind passes: its reader says what is wrong with it.
    """
    is_binary = _BINARY.sign_in(text) is not None
    if not is_binary and any(kind.sign_in(text) for kind in kinds):
        return
    # An importer knows its files. Most files are of the expected kind, and need none.
    others = [kind for importer in importers() for kind in importer.kinds]
    for kind in (_BINARY, *others, *_SHIPPED, *_TEXTS):
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


@dataclass(frozen=True, slots=True)
class Recorder:
    """A program to record. Without a plug-in, `simtrain import` has no options for one.

    A plug-in is a subclass, a dataclass too: its fields are options, and what their descriptions
    say is the help.
    """

    name: ClassVar[str] = ""

    @property
    def options(self) -> dict[str, object]:
        """The options that are given, by their names; --record comes first."""
        return {}

    def record(self, gpus: int, out: Path | None, overrides: Sequence[str], force: bool) -> None:
        """Record the program, write its scenario, and print what to do next."""


RECORDERS = Parts[Recorder]("recorders", Recorder, ())
