"""What a format of traces answers: its suffixes, its text, and how a trace is written.

Modules of formats import the rest of simtrain in functions or for types only: `--help` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from simtrain.render.traces.events import TraceEvents


class TraceFormat(ABC):
    """A format of traces."""

    suffixes: ClassVar[tuple[str, ...]]
    """Ends of names of its files, in lower case. A file that ends with .gz is compressed."""
    text: ClassVar[str]
    """What its files have."""
    has_kernels: ClassVar[bool] = True
    """Whether it can show the kernels of chosen passes."""
    package: ClassVar[str] = ""
    """An optional package that it needs."""
    instead: ClassVar[str] = ""
    """What to write without the package."""

    @abstractmethod
    def write(self, events: TraceEvents, target: IO[bytes]) -> None:
        """Write all simulated ranks."""
