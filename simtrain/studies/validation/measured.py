"""A measured iteration, as a table or a log has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from simtrain.errors import InputError
from simtrain.scenario import Scenario

LEAST_S, MOST_S = 1e-6, 1e7
"""Shortest and longest time that an iteration can have: less than a kernel's, and four months."""
LEAST_BYTES, MOST_BYTES = 1e6, 1e14
"""Smallest and largest peak: less than a CUDA context's, and the memory of no GPU."""
_SAME_MODEL = 1.25
"""Largest factor between a printed number of parameters and ours. Some count no embeddings, which
are a fifth of a small model."""


class PeakOf(Enum):
    """What a measured peak of memory is the peak of."""

    GPU = "gpu"
    """All memory in use on the fullest GPU, with driver, CUDA context and fragmentation."""
    TENSORS = "tensors"
    """Allocated tensors on the fullest GPU (torch.cuda.max_memory_allocated)."""
    LAST_STAGE = "last_stage"
    """Allocated tensors on the last stage: Megatron-LM's last rank writes its logs."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the command line says about all runs.

    Args:
        cluster: the hardware profile on which they are simulated.
        software: the software stack of runs whose table does not name one.
        overrides: fields to set in every run, such as "overlap.data_parallel=true".
        usual_software: the stack that is assumed if nothing names one; by default that of
            scenarios.
    """

    cluster: str
    software: str | None = None
    overrides: tuple[str, ...] = ()
    usual_software: str | None = None

    @property
    def assignments(self) -> list[str]:
        """The overrides, after the cluster and the software stack."""
        stack = [f"software.stack={self.software}"] if self.software else []
        return [f"cluster={self.cluster}", *stack, *self.overrides]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """An iteration that someone ran, or tried to.

    Args:
        name: its name in the source; the line if it has none.
        model: the model's name; runs of one model are ranked together.
        file: the source.
        line: where it is in the source, from 1.
        scenario: the same iteration as a scenario; None if it cannot be simulated.
        iteration_time_s: the measured time; None if it was not measured.
        peak_bytes: the measured peak of memory; None if it was not measured.
        peak_of: what it is the peak of.
        ran: whether the run had enough memory.
        refusal: why it cannot be simulated, "" if it can.
        assumed: facts that the source does not have, and what stands for them.
        parameters_billion: how many parameters the source says that the model has, in billions.
    """

    name: str
    model: str
    file: str
    line: int
    scenario: Scenario | None = None
    iteration_time_s: float | None = None
    peak_bytes: float | None = None
    peak_of: PeakOf = PeakOf.GPU
    ran: bool = True
    refusal: str = ""
    assumed: Sequence[str] = ()
    parameters_billion: float | None = None


class Runs:
    """The runs of several sources; those of long tables are made when they are reached."""

    def __init__(self, sources: Iterable[Sequence[MeasuredRun] | Runs]) -> None:
        self._sources = [*sources]

    def __len__(self) -> int:
        return sum(map(len, self._sources))

    def __iter__(self) -> Iterator[MeasuredRun]:
        return chain.from_iterable(self._sources)


def other_model(run: MeasuredRun, num_parameters: int) -> str:
    """Say that what is simulated is not the model that was run, or return ""."""
    printed, ours = run.parameters_billion, num_parameters / 1e9
    if printed is None or 1 / _SAME_MODEL <= ours / printed <= _SAME_MODEL:
        return ""
    return (
        f"the source says {printed:.4g} billion parameters, and its columns describe a model of "
        f"{ours:.3g} billion: add those that are missing, such as model.experts.num"
    )


def wrong_time(time_s: float) -> str:
    """Say why a time is none of an iteration, or return ""."""
    if LEAST_S <= time_s <= MOST_S:
        return ""
    return f"{time_s:.4g} s is no time of an iteration, which takes 1 us to {MOST_S:.0e} s"


def wrong_peak(peak_bytes: float) -> str:
    """Say why a peak is none of a GPU's memory, or return ""."""
    if LEAST_BYTES <= peak_bytes <= MOST_BYTES:
        return ""
    return f"{peak_bytes:.4g} bytes are no peak of a GPU, which has 1 MB to 100 TB"


def in_one_line(error: InputError) -> str:
    """Return the first problem of an error as one line: code, message, and what follows.

    The remedy of an illegal combination would make another run of it: the reason follows instead.
    """
    problem, *others = error.problems
    more = f" (and {len(others)} more)" if others else ""
    is_illegal = problem.code.startswith(("E3", "E4"))
    what = problem.reason if is_illegal and problem.reason else problem.fix
    return " ".join(f"{problem.code} {problem.message}{f'; {what}' if what else ''}{more}".split())
