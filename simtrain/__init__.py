"""simtrain: a discrete-event simulator of large-model training iterations.

>>> import simtrain
>>> result = simtrain.simulate(simtrain.load_scenario("table5_22b_present"))
>>> result.iteration_time_s, result.mfu, result.timeline  # doctest: +SKIP

`simulate` returns a `Result`. `compare` says why results differ, `sensitivity` what better hardware
saves, `draw` how an iteration varies, `cost` what a training costs, `goodput` what failures take of
it, `advise` what to change. `search`, `plan` and `sweep` simulate many scenarios. `import_scenario`
reads the files of other tools, `validate` compares measured runs, and `report` writes a page.
`scenarios()` and `profiles()` list the names of what comes with simtrain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simtrain.base.registered import imported, register
from simtrain.base.version import VERSION as __version__  # noqa: F401 (`__all__` lists it)

# For type checkers and editors; `_HOMES` says the same to Python.
if TYPE_CHECKING:
    from simtrain import models as models
    from simtrain.base.resources import list_profiles as profiles  # noqa: F401 (see `_HOMES`)
    from simtrain.base.resources import list_scenarios as scenarios  # noqa: F401
    from simtrain.errors import DoesNotFitError as DoesNotFitError
    from simtrain.errors import InputError as InputError
    from simtrain.errors import SimtrainError as SimtrainError
    from simtrain.hardware.load import load_profile as load_profile
    from simtrain.importing.import_scenario import import_scenario as import_scenario
    from simtrain.importing.runs import validate as validate
    from simtrain.iteration.report.difference import Difference as Difference
    from simtrain.iteration.report.difference import compare as compare
    from simtrain.iteration.report.result import Result as Result
    from simtrain.render.figures.iteration import plot_breakdown as plot_breakdown
    from simtrain.render.figures.iteration import plot_memory as plot_memory
    from simtrain.render.figures.iteration import plot_timeline as plot_timeline
    from simtrain.render.html.report import report as report
    from simtrain.render.traces.write import write_trace as write_trace
    from simtrain.scenario import Scenario as Scenario
    from simtrain.scenario import load_scenario as load_scenario
    from simtrain.studies.advice import advise as advise
    from simtrain.studies.cost import cost as cost
    from simtrain.studies.goodput.goodput import goodput as goodput
    from simtrain.studies.planning import plan as plan
    from simtrain.studies.search.run import search as search
    from simtrain.studies.sensitivity import sensitivity as sensitivity
    from simtrain.studies.simulation import simulate as simulate
    from simtrain.studies.sweep.results import query as query
    from simtrain.studies.sweep.run import sweep as sweep
    from simtrain.studies.variation import draw as draw

_HOMES = {
    "Difference": "simtrain.iteration.report.difference.Difference",
    "DoesNotFitError": "simtrain.errors.DoesNotFitError",
    "InputError": "simtrain.errors.InputError",
    "Result": "simtrain.iteration.report.result.Result",
    "Scenario": "simtrain.scenario.Scenario",
    "SimtrainError": "simtrain.errors.SimtrainError",
    "advise": "simtrain.studies.advice.advise",
    "compare": "simtrain.iteration.report.difference.compare",
    "cost": "simtrain.studies.cost.cost",
    "draw": "simtrain.studies.variation.draw",
    "goodput": "simtrain.studies.goodput.goodput.goodput",
    "import_scenario": "simtrain.importing.import_scenario.import_scenario",
    "load_profile": "simtrain.hardware.load.load_profile",
    "load_scenario": "simtrain.scenario.load_scenario",
    "plan": "simtrain.studies.planning.plan",
    "plot_breakdown": "simtrain.render.figures.iteration.plot_breakdown",
    "plot_memory": "simtrain.render.figures.iteration.plot_memory",
    "plot_timeline": "simtrain.render.figures.iteration.plot_timeline",
    "profiles": "simtrain.base.resources.list_profiles",
    "query": "simtrain.studies.sweep.results.query",
    "report": "simtrain.render.html.report.report",
    "scenarios": "simtrain.base.resources.list_scenarios",
    "search": "simtrain.studies.search.run.search",
    "sensitivity": "simtrain.studies.sensitivity.sensitivity",
    "simulate": "simtrain.studies.simulation.simulate",
    "sweep": "simtrain.studies.sweep.run.sweep",
    "validate": "simtrain.importing.runs.validate",
    "write_trace": "simtrain.render.traces.write.write_trace",
}
"""Where each public name is defined."""
register(
    {name: place for name, place in _HOMES.items() if name.startswith("plot_")}
    | {"result_html": "simtrain.render.html.pages.result_html"}
)

__all__ = sorted([*_HOMES, "__version__", "models"])


def __getattr__(name: str) -> Any:
    """Import a name at its first use, because `simtrain --help` imports this module."""
    if name == "models":
        return import_module("simtrain.models")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = imported(_HOMES[name])
    return value


def __dir__() -> list[str]:
    """List the public names, without the modules that happen to be imported."""
    return __all__
