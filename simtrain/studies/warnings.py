"""Warnings on a result that need other iterations to be simulated."""

from __future__ import annotations

from simtrain.base.wording import Sentence
from simtrain.iteration.report.result import Result
from simtrain.studies.slow_host import slow_host_warnings
from simtrain.studies.unaligned_gather import unaligned_gather_warnings


def warnings_on(result: Result) -> list[Sentence]:
    """Return all warnings on a result, each with what it would cost or save."""
    return [*unaligned_gather_warnings(result), *slow_host_warnings(result)]
