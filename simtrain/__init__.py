"""simtrain: a discrete-event simulator of large-model training iterations.

>>> import simtrain
>>> result = simtrain.simulate(simtrain.load_scenario("table5_22b_present"))
>>> result.iteration_time_s, result.mfu, result.timeline  # doctest: +SKIP

`compare` says why results differ. `Evaluator` is faster for many scenarios. `search` searches for
layouts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simtrain.base.version import VERSION as __version__

if TYPE_CHECKING:
    from simtrain import models
    from simtrain.errors import DoesNotFitError, InputError, SimtrainError
    from simtrain.hardware.load import load_profile
    from simtrain.iteration.report.difference import Difference, compare
    from simtrain.iteration.report.result import Result
    from simtrain.render.figures.breakdown import plot_breakdown
    from simtrain.render.figures.iteration_memory import plot_memory
    from simtrain.render.figures.timeline import plot_timeline
    from simtrain.scenario import Scenario, load_scenario
    from simtrain.studies.evaluation import Evaluation, Evaluator
    from simtrain.studies.search import search
    from simtrain.studies.simulation import simulate

__all__ = [
    "Difference",
    "DoesNotFitError",
    "Evaluation",
    "Evaluator",
    "InputError",
    "Result",
    "Scenario",
    "SimtrainError",
    "__version__",
    "compare",
    "load_profile",
    "load_scenario",
    "models",
    "plot_breakdown",
    "plot_memory",
    "plot_timeline",
    "search",
    "simulate",
]

_MODULES = {
    "Difference": "simtrain.iteration.report.difference",
    "DoesNotFitError": "simtrain.errors",
    "Evaluation": "simtrain.studies.evaluation",
    "Evaluator": "simtrain.studies.evaluation",
    "InputError": "simtrain.errors",
    "Result": "simtrain.iteration.report.result",
    "Scenario": "simtrain.scenario",
    "SimtrainError": "simtrain.errors",
    "compare": "simtrain.iteration.report.difference",
    "load_profile": "simtrain.hardware.load",
    "load_scenario": "simtrain.scenario",
    "search": "simtrain.studies.search",
    "plot_breakdown": "simtrain.render.figures.breakdown",
    "plot_memory": "simtrain.render.figures.iteration_memory",
    "plot_timeline": "simtrain.render.figures.timeline",
    "simulate": "simtrain.studies.simulation",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use, because `simtrain --help` imports this module."""
    if name == "models":
        return import_module("simtrain.models")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """List the public names, without the modules that happen to be imported."""
    return sorted(__all__)
