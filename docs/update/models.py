"""What a model is: its parameters and its FLOPs."""

from docs.update.request import Generator, Request
from docs.update.simulations import scenario_of
from simtrain.hardware.load import profile_of
from simtrain.plan import Plan


def parameters(request: Request) -> str:
    """Parameters of a scenario's model, in billions."""
    scenario = scenario_of(tuple(request.words))
    plan = Plan.of(scenario, profile_of(scenario).cluster.domains)
    return f"{plan.num_parameters / 1e9:.1f}B"


GENERATORS: dict[str, Generator] = {"parameters": parameters}
