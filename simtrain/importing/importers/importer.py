"""What an importer answers: its command, the files that it recognises, and their scenario.

Modules of importers import scenarios in functions or for types only: `--help` lists the importers,
and files of another kind are recognised by them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from simtrain.base.file_kinds import FileKind
    from simtrain.importing.draft import Draft
    from simtrain.scenario import Scenario


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
    ) -> Draft:
        """Return the draft of a scenario; arguments and errors are those of `read`."""

    def read(
        self,
        source: str,
        overrides: Iterable[str] = (),
        *,
        ignore_unknown: bool = False,
        gpus: int | None = None,
    ) -> tuple[Scenario, str]:
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
