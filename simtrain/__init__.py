"""simtrain: a discrete-event simulator of large-model training iterations.

>>> import simtrain
>>> result = simtrain.run(simtrain.load_scenario("table5_22b_present"))
>>> result.iteration_time_s, result.mfu, result.timeline  # doctest: +SKIP

The verbs and the names of their arguments are those of the command line: `run`, `compare`,
`search`, `cost`, `sweep`, `import_`, `export` and `validate`. All answers have a `repr` of one
line, `to_json()` and `frame()`. `scenarios()` and `profiles()` list what comes with simtrain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simtrain.base.registered import imported, register
from simtrain.base.version import VERSION as __version__  # noqa: F401 (`__all__` lists it)

if TYPE_CHECKING:  # for editors; `_HOMES` says the same to Python
    from simtrain.base.resources import list_profiles as profiles  # noqa: F401 (see `_HOMES`)
    from simtrain.base.resources import list_scenarios as scenarios  # noqa: F401
    from simtrain.errors import DoesNotFitError as DoesNotFitError
    from simtrain.errors import InputError as InputError
    from simtrain.errors import SimtrainError as SimtrainError
    from simtrain.guests.importing.import_scenario import import_ as import_
    from simtrain.guests.importing.megatron.export import export as export
    from simtrain.guests.importing.runs import validate as validate
    from simtrain.hardware.load import load_profile as load_profile
    from simtrain.iteration.report.result import Result as Result
    from simtrain.render.html.report import report as report
    from simtrain.render.traces.write import write_trace as write_trace
    from simtrain.scenario import Scenario as Scenario
    from simtrain.scenario import load_scenario as load_scenario
    from simtrain.scenario import shipped_models as models  # noqa: F401
    from simtrain.studies.comparison import compare as compare
    from simtrain.studies.cost import cost as cost
    from simtrain.studies.planning import search as search
    from simtrain.studies.simulation import simulate as run  # noqa: F401
    from simtrain.studies.sweep.run import sweep as sweep

_HOMES = {
    "DoesNotFitError": "simtrain.errors.DoesNotFitError",
    "InputError": "simtrain.errors.InputError",
    "Result": "simtrain.iteration.report.result.Result",
    "Scenario": "simtrain.scenario.Scenario",
    "SimtrainError": "simtrain.errors.SimtrainError",
    "compare": "simtrain.studies.comparison.compare",
    "cost": "simtrain.studies.cost.cost",
    "export": "simtrain.guests.importing.megatron.export.export",
    "import_": "simtrain.guests.importing.import_scenario.import_",
    "load_profile": "simtrain.hardware.load.load_profile",
    "load_scenario": "simtrain.scenario.load_scenario",
    "profiles": "simtrain.base.resources.list_profiles",
    "report": "simtrain.render.html.report.report",
    "run": "simtrain.studies.simulation.simulate",
    "scenarios": "simtrain.base.resources.list_scenarios",
    "search": "simtrain.studies.planning.search",
    "sweep": "simtrain.studies.sweep.run.sweep",
    "validate": "simtrain.guests.importing.runs.validate",
    "write_trace": "simtrain.render.traces.write.write_trace",
}
"""Where each public name is defined."""
register(
    {
        "plot_timeline": "simtrain.render.figures.iteration.plot_timeline",
        "plot_breakdown": "simtrain.render.figures.iteration.plot_breakdown",
        "plot_memory": "simtrain.render.figures.iteration.plot_memory",
        "result_html": "simtrain.render.html.pages.result_html",
        "result_table": "simtrain.views.result.breakdown_table",
        "result_json": "simtrain.studies.variation.result_json",
        "load_imported": "simtrain.guests.importing.loading.load_imported",
        "read_runs": "simtrain.guests.importing.runs.read_runs",
        "draw": "simtrain.studies.variation.draw",
        "answer_view": "simtrain.views.answer.answer_view",
    }
)
"""What answers use of rooms that are built on them: pictures and views."""

__all__ = sorted([*_HOMES, "__version__", "models"])


def __getattr__(name: str) -> Any:
    """Import a name at its first use, because `simtrain --help` imports this module."""
    if name == "models":
        return import_module("simtrain.scenario.shipped_models")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = imported(_HOMES[name])
    return value


def __dir__() -> list[str]:
    """List the public names, without the modules that happen to be imported."""
    return __all__
