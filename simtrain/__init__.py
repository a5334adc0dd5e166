"""simtrain: a discrete-event simulator of large-model training iterations.

>>> import simtrain
>>> result = simtrain.simulate(simtrain.load_scenario("table5_22b_present"))
>>> result.iteration_time_s, result.mfu, result.timeline  # doctest: +SKIP

`compare` says why results differ. `Evaluator` is faster for many scenarios. `simtrain.search`
searches for layouts, and `simtrain.cost` estimates the cost of a training run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simtrain.version import VERSION as __version__

if TYPE_CHECKING:
    from simtrain import cost, models, search, sweep
    from simtrain.errors import DoesNotFitError, InputError, SimtrainError
    from simtrain.evaluation import Evaluation, Evaluator
    from simtrain.figures.breakdown import plot_breakdown
    from simtrain.figures.iteration_memory import plot_memory
    from simtrain.figures.timeline import plot_timeline
    from simtrain.hardware.load import load_profile
    from simtrain.report.difference import Difference, compare
    from simtrain.report.result import Result
    from simtrain.scenario import Scenario, load_scenario
    from simtrain.simulation import simulate

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
    "cost",
    "load_profile",
    "load_scenario",
    "models",
    "plot_breakdown",
    "plot_memory",
    "plot_timeline",
    "search",
    "simulate",
    "sweep",
]

_SUBMODULES = frozenset({"cost", "models", "search", "sweep"})
_MODULES = {
    "Difference": "simtrain.report.difference",
    "DoesNotFitError": "simtrain.errors",
    "Evaluation": "simtrain.evaluation",
    "Evaluator": "simtrain.evaluation",
    "InputError": "simtrain.errors",
    "Result": "simtrain.report.result",
    "Scenario": "simtrain.scenario",
    "SimtrainError": "simtrain.errors",
    "compare": "simtrain.report.difference",
    "load_profile": "simtrain.hardware.load",
    "load_scenario": "simtrain.scenario",
    "plot_breakdown": "simtrain.figures.breakdown",
    "plot_memory": "simtrain.figures.iteration_memory",
    "plot_timeline": "simtrain.figures.timeline",
    "simulate": "simtrain.simulation",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use, because `simtrain --help` imports this module."""
    if name in _SUBMODULES:
        return import_module(f"simtrain.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """List the public names, without the modules that happen to be imported."""
    return sorted(__all__)
