"""simtrain: a discrete-event simulator of large-model training iterations.

>>> import simtrain
>>> result = simtrain.simulate(simtrain.load_scenario("table5_22b_present"))
>>> result.iteration_time_s, result.mfu, result.timeline  # doctest: +SKIP
"""

from simtrain.errors import InputError, SimtrainError
from simtrain.hardware.load import load_profile
from simtrain.report.result import Result
from simtrain.scenario import Scenario, load_scenario
from simtrain.simulation import simulate
from simtrain.version import VERSION as __version__

__all__ = [
    "InputError",
    "Result",
    "Scenario",
    "SimtrainError",
    "__version__",
    "load_profile",
    "load_scenario",
    "simulate",
]
