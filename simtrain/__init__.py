"""simtrain: a discrete-event simulator of large-model training iterations.

>>> import simtrain
>>> result = simtrain.simulate(simtrain.load_scenario("table5_22b_present"))
>>> result.iteration_time_s, result.mfu, result.timeline  # doctest: +SKIP

For many scenarios `Evaluator` is faster; searches are in `simtrain.search`, what training costs in
`simtrain.cost`.
"""

from simtrain.errors import DoesNotFitError, InputError, SimtrainError
from simtrain.evaluation import Evaluation, Evaluator
from simtrain.hardware.load import load_profile
from simtrain.report.result import Result
from simtrain.scenario import Scenario, load_scenario
from simtrain.simulation import simulate
from simtrain.version import VERSION as __version__

__all__ = [
    "DoesNotFitError",
    "Evaluation",
    "Evaluator",
    "InputError",
    "Result",
    "Scenario",
    "SimtrainError",
    "__version__",
    "load_profile",
    "load_scenario",
    "simulate",
]
