"""All objectives. A new one is a class in a file of its own and a place here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from simtrain.base.plug_ins import Parts
from simtrain.errors import InputError
from simtrain.studies.objectives.cost import Cost
from simtrain.studies.objectives.memory import PeakMemory
from simtrain.studies.objectives.objective import Objective
from simtrain.studies.objectives.p95 import P95
from simtrain.studies.objectives.robust import Robust
from simtrain.studies.objectives.time import Time
from simtrain.studies.objectives.tokens_per_s import TokensPerSecond

_HOUSE: tuple[Objective, ...] = (
    *(Time(), Cost(), PeakMemory(), TokensPerSecond(), Robust(), P95()),
)
OBJECTIVES = Parts[Objective]("objectives", Objective, _HOUSE)
"""The objectives by name. The first is the default."""
DEFAULT = next(iter(OBJECTIVES))

if TYPE_CHECKING:
    ObjectiveName = str
else:
    # Commands and documents list the values of these types.
    ObjectiveName = Literal[tuple(OBJECTIVES)]


def objective_of(name: str, objectives: Mapping[str, Objective] = OBJECTIVES) -> Objective:
    """Look up an objective by name; refuse an unknown one (E834)."""
    if not isinstance(name, str) or name not in objectives:
        fix = f"write one of {', '.join(objectives)}"
        raise InputError.of("E834", f"objective is {name!r}", fix=fix)
    return objectives[name]
