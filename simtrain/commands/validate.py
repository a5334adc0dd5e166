"""`simtrain validate`, and what plug-ins answer that read files of measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from simtrain.base.plug_ins import Parts
from simtrain.base.resources import list_profiles, list_stacks
from simtrain.base.values import dataclass
from simtrain.commands.declare import Argument, Fields, Option, options_first
from simtrain.commands.options import OutOption, SetOption, refuse
from simtrain.commands.output import Output
from simtrain.errors import InputError, Location
from simtrain.studies.requests import ValidationRequest


@dataclass(frozen=True, slots=True)
class Measured:
    """What the user measured, as `ValidationRequest`, and a file for the errors by kind of runs."""

    files: Sequence[Path]
    cluster: str
    software: str | None
    overrides: Sequence[str]
    out: Path | None
    output: Output

    @property
    def options(self) -> dict[str, object]:
        names = "--cluster", "--software", "--set", "-o"
        values = self.cluster, self.software, self.overrides, self.out
        return dict(zip(names, values, strict=True))

    @property
    def machine(self) -> str:
        """The hardware profile; without one it raises InputError (E903)."""
        if not self.cluster:
            fix = "write --cluster NAME, the hardware profile of the machine that was measured"
            raise InputError.of("E903", "is missing", Location("simtrain validate --cluster"), fix)
        return self.cluster


class Validator(ABC):
    """Answers for measurements of a kind; a lower `place` is tried first."""

    name: ClassVar[str]
    place: ClassVar[int] = 100

    @abstractmethod
    def takes(self, file: Path) -> bool:
        """Return whether it reads this file or folder."""

    @abstractmethod
    def validate(self, measured: Measured) -> None:
        """Print the answer, and write its files."""


_VALIDATORS = Parts[Validator]("validators", Validator, ())


MeasuredFields = Annotated[
    dict[str, Any],
    Fields(
        ValidationRequest,
        "files cluster software",
        {
            "files": Annotated[list[Path], Argument("MEASURED")],
            "cluster": Option(complete=list_profiles),
            "software": Option(complete=list_stacks),
        },
    ),
]


@options_first("files cluster software overrides out")
def validate(
    fields: MeasuredFields,
    overrides: SetOption = None,
    out: OutOption = None,
    *,
    output: Output,
) -> None:
    """Hold measurements against predictions: runs, logs, a calibration, and traces of all ranks.

    Args:
        out: file for the errors by kind of runs. As validated_on/NAME.yaml beside NAME.yaml,
            they give the intervals of predictions with that profile.

    Each line of a table of runs has its model, layout, batch, and the measured time or peak.
    Columns have common names, such as num_layers or layers, tp, micro_batch, iteration_s,
    peak_mem_gb, or the names of fields; simtrain show validate lists them. A run that cannot be
    simulated is counted and says why; --format csv --table runs lists all. Exits with 2 if no run
    can be simulated.

    Layers and iterations in a folder of measurements are those that no fit used. Exits with 4 if
    more than one of ten times is outside the interval that the profile states.

    A step of traces is replayed from its durations alone, and then again without each rank: the
    answer is the rank that all others wait for: simtrain validate rank*.json.gz

    Example: simtrain validate runs.csv --cluster h100_sxm --software megatron_core
    """
    measured = Measured(**fields, overrides=overrides or (), out=out, output=output)
    for validator in sorted(_VALIDATORS.values(), key=lambda each: each.place):
        if validator.takes(measured.files[0]):
            validator.validate(measured)
            return
    files: dict[str, object] = {"MEASURED": measured.files}
    refuse(files, "is of no kind that an installed package reads", "name a table")
