"""What an importer answers: its command, the files that it recognises, and their scenario.

Modules of importers import scenarios in functions or for types only: `--help` lists the importers,
and files of another kind are recognised by them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from simtrain.base.file_kinds import FileKind
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
    written: ClassVar[str] = ""
    """Help of `simtrain export NAME`, with an example; "" if scenarios cannot be written for it."""
    is_model: ClassVar[bool] = False
    """Whether a source describes a model alone, without GPUs and batch."""

    @abstractmethod
    def read(
        self, source: str, overrides: Iterable[str] = (), *, ignore_unknown: bool = False
    ) -> tuple[Scenario, str]:
        """Return the scenario of a source, and the text of its file.

        Args:
            source: the argument of the command, mostly a path.
            overrides: fields to set, such as "parallelism.tensor=8".
            ignore_unknown: whether to leave out what simtrain does not know, and list it in the
                first lines of the file.

        Raises:
            InputError: the source cannot be read, or has unknown or invalid settings.
        """

    def read_on(
        self,
        gpus: int,
        source: str,
        overrides: Iterable[str] = (),
        *,
        ignore_unknown: bool = False,
    ) -> tuple[Scenario, str]:
        """Return what `read` does, with as many replicas as run on a number of GPUs.

        Raises:
            InputError: as `read`; E880, no number of replicas has these GPUs.
        """
        from simtrain.errors import InputError

        overrides = tuple(overrides)
        scenario, _ = self.read(source, overrides, ignore_unknown=ignore_unknown)
        split = scenario.parallelism
        replica = split.tensor * split.context * split.pipeline
        data, rest = divmod(gpus, replica)
        if rest or not data:
            words = f"--gpus is {gpus}, not a multiple of tensor x context x pipeline ({replica})"
            nearest = max(round(gpus / replica), 1) * replica
            raise InputError.of("E880", words, fix=f"write --gpus {nearest}, or --set another")
        replicas = f"parallelism.data={data}"
        return self.read(source, (*overrides, replicas), ignore_unknown=ignore_unknown)

    def write(self, scenario: Scenario) -> str:
        """Return the text from which `read` makes the scenario again.

        Comments list the fields that the framework cannot say.
        """
        raise NotImplementedError(f"{self.name} has no help of `simtrain export`")
