"""Parameters of models, costs of trainings and results of searches."""

import functools

from docs.update.request import Generator, Request, seconds
from docs.update.simulations import run_of, scenario_of
from simtrain.hardware.load import profile_of
from simtrain.iteration.plan import Plan
from simtrain.scenario import load_unchecked
from simtrain.studies.cost import Terms, training_cost
from simtrain.studies.search import SearchResult, search
from simtrain.units import parse_tokens


def parameters(request: Request) -> str:
    """Return the parameters of a scenario's model, in billions."""
    scenario = scenario_of(tuple(request.words))
    plan = Plan.of(scenario, profile_of(scenario).cluster.domains_of(scenario.num_gpus))
    return f"{plan.num_parameters / 1e9:.1f}B"


def cost(request: Request) -> str:
    """Return days, GPU-hours and price of a training: `cost SCENARIO tokens=1T ...`."""
    name, tokens, *assignments = request.words
    scenario = scenario_of((name, *assignments))
    time_s = run_of((name, *assignments)).iteration_time_s
    num_tokens = parse_tokens(tokens.removeprefix("tokens="))
    whole = training_cost(scenario, profile_of(scenario), time_s, Terms(num_tokens))
    assert whole.price is not None
    price = f"{whole.price / 1e6:.2f} million USD"
    return f"{whole.time_s / 86400:,.0f} days, {whole.gpu_hours:,.0f} GPU-hours, {price}"


def best(request: Request) -> str:
    """Return the fastest layout of `simtrain search`: `best SCENARIO gpus=64 ...`."""
    first = _search(tuple(request.words)).ranked[0]
    split = first.scenario.parallelism
    chunks = f" of {split.interleave} chunks" if split.interleave > 1 else ""
    words = f"{split.tensor} tensor-parallel ranks, {split.pipeline} stages{chunks}"
    return f"{words} and {split.data} replicas: {seconds(first.run.iteration_time_s)}"


def searched(request: Request) -> str:
    """Return a field of a search's JSON: `searched num_fitting SCENARIO gpus=64 ...`."""
    field, *words = request.words
    return f"{_search(tuple(words)).to_dict()[field]:,}"


@functools.cache
def _search(words: tuple[str, ...]) -> SearchResult:
    name, gpus, *assignments = words
    base = load_unchecked(name, assignments)
    return search(base, (int(gpus.removeprefix("gpus=")),))


GENERATORS: dict[str, Generator] = {one.__name__: one for one in (parameters, cost, best, searched)}
