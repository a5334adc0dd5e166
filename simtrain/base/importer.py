"""What an importer answers: its command, the files that it recognises, and their scenario.

Importers are plug-ins (entry points `simtrain.importers`), those of simtrain too. Their modules
import scenarios in functions or for types only: `--help` lists the importers, and files of another
kind are recognised by them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from simtrain.base.plug_ins import Parts

if TYPE_CHECKING:
    from simtrain.base.file_kinds import FileKind


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


class Importer(ABC):
    """Converts what another tool reads or writes to a scenario."""

    name: ClassVar[str]
    """Its command: `simtrain import NAME`."""
    metavar: ClassVar[str]
    """What the command's help calls its argument."""
    argument: ClassVar[str]
    """What the argument is."""
    text: ClassVar[str]
    """Help of the command, with an example."""
    kinds: ClassVar[tuple[FileKind, ...]]
    """The kinds of files that it reads. Errors about other files name the first."""
    reads_options: ClassVar[bool] = False
    """Whether the argument can be the options of another tool, which begin with "--"."""
    reads_model: ClassVar[bool] = False
    """Whether the model can be in another file, which `--model` names."""
    model: str = ""
    """That file; "" if the source says it."""
    reads_configs: ClassVar[bool] = False
    """Whether a source can contain several configs, one of which `--config` names."""
    config: str = ""
    """That config; "" if the source has one."""
    reads_variables: ClassVar[bool] = False
    """Whether a source can have variables, whose values `--env` says."""
    env: Mapping[str, str] = MappingProxyType({})
    """Those values."""
    place: ClassVar[int] = 100
    """Where it is tried: lower first, for files that have the signs of several importers."""
    is_model: ClassVar[bool] = False
    """Whether a source describes a model alone, without GPUs and batch."""

    @abstractmethod
    def draft(
        self,
        source: str,
        overrides: Iterable[str] = (),
        *,
        ignore_unknown: bool = False,
        gpus: int | None = None,
    ) -> ImportDraft:
        """Return the draft of a scenario; arguments and errors are those of `read`."""

    def read(
        self,
        source: str,
        overrides: Iterable[str] = (),
        *,
        ignore_unknown: bool = False,
        gpus: int | None = None,
    ) -> tuple[Any, str]:
        """Return the scenario of a source, and the text of its file.

        Args:
            source: the argument of the command, mostly a path.
            overrides: fields to set, such as "parallelism.tensor=8".
            ignore_unknown: whether to leave out what simtrain does not know, and list it in the
                first lines of the file.
            gpus: the number of GPUs, if the source does not say it or says another one.

        Raises:
            InputError: the source cannot be read, or has unknown or invalid settings.
        """
        return self.draft(source, overrides, ignore_unknown=ignore_unknown, gpus=gpus).finished()


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
            from simtrain.base.file_kinds import MOST_BYTES_OF_LOG
            from simtrain.base.input_file import open_input

            with open_input(path) as file:
                return importer_of(file.read(MOST_BYTES_OF_LOG).decode("utf-8", "replace"))
    return None


def importer_of(text: str) -> Importer | None:
    """Return the importer of a file with this text; None for scenarios and unknown files."""
    kinds = ((each, kind) for each in importers() for kind in each.kinds)
    return next((importer for importer, kind in kinds if kind.sign_in(text)), None)
