"""What an importer answers: its command, the files that it recognises, and their scenario.

Importers are plug-ins (entry points `simtrain.importers`), those of simtrain too. Their modules
import scenarios in functions or for types only: `--help` lists the importers, and files of another
kind are recognised by them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from simtrain.base.plug_ins import Parts
from simtrain.errors import InputError, Location, wrong_type

if TYPE_CHECKING:
    from simtrain.base.input_file import FileKind


class ImportDraft(Protocol):
    """A scenario during its import; `simtrain.importing.draft.Draft` is one."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What the source leaves open and the scenario takes for granted."""

    @property
    def ignored(self) -> Sequence[str]:
        """Settings that are not modelled, as the source spells them."""

    @property
    def num_settings(self) -> int:
        """The number of settings that were read."""

    def is_default(self, name: str) -> bool:
        """Whether no setting of the source decides a field, such as "parallelism.data"."""

    # Scenarios are of a room above this one.
    def scenario(self) -> Any:
        """Return the scenario after overrides, without checking it."""

    def finished(self) -> tuple[Any, str]:
        """Return the checked scenario, and the text of its file."""


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
        capture: run the script in your shell, with recorders in place of torchrun, python, srun,
            mpirun and deepspeed, and import what it would start: exact, and the only option that
            runs your script.
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

    def text(self, importer: Importer) -> str:
        """Return the text of the source, a file of an importer's kinds.

        Raises:
            InputError: the file cannot be read, is of another kind (E116), or has the sign of none
                of the importer's kinds (E741).
        """
        from simtrain.base.input_file import text_of_kind

        text = text_of_kind(Path(self.source), *importer.kinds)
        if not any(kind.sign_in(text) for kind in importer.kinds):
            raise importer.no_sign(self)
        return text


class Importer(ABC):
    """Converts what another tool reads or writes to a scenario.

    The docstring of its class is the help of its command, with an example.
    """

    name: ClassVar[str]
    """Its command: `simtrain import NAME`."""
    metavar: ClassVar[str] = "FILE"
    """What the command's help calls its argument."""
    argument: ClassVar[str] = "File to import."
    """What the argument is."""
    kinds: ClassVar[tuple[FileKind, ...]]
    """The kinds of files that it reads. Errors about other files name the first."""
    reads_options: ClassVar[bool] = False
    """Whether the argument can be the options of another tool, which begin with "--"."""
    reads_model: ClassVar[bool] = False
    """Whether the model can be in another file, which `--model` names."""
    reads_variables: ClassVar[bool] = False
    """Whether a source can have variables, whose values `--env` says."""
    place: ClassVar[int] = 100
    """Where it is tried: lower first, for files that have the signs of several importers."""
    is_model: ClassVar[bool] = False
    """Whether a source describes a model alone, without GPUs and batch."""

    @abstractmethod
    def draft(self, request: ImportRequest) -> ImportDraft:
        """Return the draft of a scenario.

        Raises:
            InputError: the source cannot be read, or has unknown or invalid settings.
        """

    @contextmanager
    def opened(self, request: ImportRequest) -> Iterator[ImportRequest]:
        yield request

    def no_sign(self, request: ImportRequest) -> InputError:
        """Return the error about a file without the sign of the importer's kinds (E741)."""
        noun = self.kinds[0].noun
        signs = " or ".join(kind.sign.pattern for kind in self.kinds)
        return InputError.of(
            "E741",
            f"no line has the sign of {noun}",
            Location(request.file),
            f"write the path of {noun}, which has a match of {signs}",
            "another file would be imported with the default of every field",
        )


_IMPORTERS = Parts[Importer]("importers", Importer, ())


def importers() -> list[Importer]:
    """Return all importers, in the order in which they are tried."""
    return sorted(_IMPORTERS.values(), key=lambda importer: (importer.place, importer.name))


def importer_of_file(source: str | PathLike[str]) -> Importer | None:
    """Return the importer of a file, or of a folder with a config.json.

    None for scenarios, unknown files and what is no file.
    """
    path = Path(source)
    with suppress(OSError, ValueError):
        if path.is_dir():
            path /= "config.json"
        if path.is_file():  # a pipe can be read only once
            from simtrain.base.input_file import MOST_BYTES_OF_LOG, open_input

            with open_input(path) as file:
                return importer_of(file.read(MOST_BYTES_OF_LOG).decode("utf-8", "replace"))
    return None


def importer_of(text: str) -> Importer | None:
    """Return the importer of a file with this text; None for scenarios and unknown files."""
    kinds = ((each, kind) for each in importers() for kind in each.kinds)
    return next((importer for importer, kind in kinds if kind.sign_in(text)), None)
