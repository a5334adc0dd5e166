"""A program of the user's own in place of a model: the door by which its reader plugs in.

A scenario names a file, as in `program: gpt.program.json.gz`. An entry point of
"simtrain.programs" names the `ProgramReader` that knows these files; no room of the core does.
Model, batch, layout and data types are those of the program, and what decides its ops is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from simtrain.base.input_file import FileVersion
from simtrain.base.mesh import Domains
from simtrain.base.plug_ins import Parts
from simtrain.errors import InputError, Location
from simtrain.scenario.software import Kernels

PROGRAM_FIELDS: Final = (
    *("name", "description", "program", "software", "cluster", "hardware", "variation"),
)
"""Fields that a scenario with a program may set."""
PROGRAM_REFUSAL: Final = (
    "a recorded program has its own: only software, cluster, hardware and variation can be set "
    "beside it"
)


class ProgramReader(ABC):
    """Reads the files of programs."""

    name: ClassVar[str]

    @abstractmethod
    def settings(self, file: FileVersion) -> Mapping[str, Any]:
        """Return the sections that follow from a program, as in scenario files.

        Raises:
            InputError: the file has no program.
        """

    @abstractmethod
    def step(self, file: FileVersion, domains: Domains, kernels: Kernels) -> object:
        """Return the training step (`workload.recorded_step.RecordedStep`) of a program.

        Args:
            file: the program.
            domains: of the cluster.
            kernels: of the software stack.
        """


READERS: Parts[ProgramReader] = Parts("programs", ProgramReader, ())


def program_reader(file: str) -> ProgramReader:
    """Return the reader of a program; raises InputError if none is installed (E740)."""
    for reader in READERS.values():
        return reader
    fix = "install simtrain with its guests again, or describe a model in place of a program"
    raise InputError.of("E740", "nothing that is installed reads programs", Location(file), fix)
