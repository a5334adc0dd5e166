"""The cost of parameter gathers that interleaved stages do not align, which reports warn of."""

from __future__ import annotations

from simtrain.base.wording import Number, Sentence
from simtrain.iteration.report.result import Result
from simtrain.studies.changes.change import Change
from simtrain.studies.evaluation import time_with
from simtrain.units import format_seconds

_FIELD = "overlap.align_parameter_gather"


def unaligned_gather_warnings(result: Result) -> list[Sentence]:
    """Return a warning with the seconds that aligned gathers would save, if they would.

    The iteration is simulated once more if stages overlap their gathers without alignment;
    other results take no time here.
    """
    scenario = result.scenario
    is_possible = scenario.overlaps_parameter_gather and scenario.schedule_family.gathers_by_chunk
    if not is_possible or scenario.aligns_parameter_gather:
        return []
    aligned_s = time_with(Change({_FIELD: True}), result)
    saved_s = result.iteration_time_s - aligned_s
    if saved_s <= 0:
        return []
    share = saved_s / aligned_s
    return [
        Sentence(
            "Each stage starts its parameter gathers on its own, and stages wait for each other: ",
            Number(saved_s, format_seconds(saved_s)),
            " (",
            Number(share, f"{share:.1%}"),
            f") more than with {_FIELD}: true, the default of Megatron-Core.",
        )
    ]
