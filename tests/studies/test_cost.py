"""The cost of a training and its energy, calculated by hand, and the output of `simtrain cost`."""

import functools
import math
import pathlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simtrain
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import GPU_POWERS
from simtrain.iteration.report.result import Result
from simtrain.scenario import load_scenario
from simtrain.studies.cost import (
    DrawnFigure,
    Terms,
    TrainingCost,
    cost_of_result,
    power_of,
    power_shares,
)
from simtrain.units import Price
from tests.helpers.command_line import call, refused
from tests.helpers.toys import a100, scenario_with

SMALL = """\
model: {num_layers: 2, hidden_size: 1024, num_attention_heads: 16, seq_length: 1000}
parallelism: {tensor: 2, pipeline: 2}
batch: {micro: 1, global: 10}
"""


@functools.cache
def iteration(entry: str = "") -> Result:
    """Return an iteration of 10,000 tokens on four A100s whose profile lacks an entry."""
    model = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "seq_length": 1000}
    split = {"tensor": 2, "pipeline": 2}
    scenario = scenario_with(model, parallelism=split, batch={"micro": 1, "global": 10})
    costs = a100().running_costs
    assert costs is not None
    left = None if entry == "running_costs" else costs.model_copy(update={entry: None})
    profile = a100().model_copy(update={"running_costs": left}) if entry else a100()
    return simtrain.run(scenario, profile)


def cost_of(tokens: int, entry: str = "", **terms: object) -> TrainingCost:
    return cost_of_result(iteration(entry), Terms(tokens, **terms))  # type: ignore[arg-type]


# -------------------------------------------------------------------------- days and price


def test_the_cost_of_a_thousand_iterations_by_hand() -> None:
    """Four GPUs at 3.43 USD/h and 400 W, and half a node of 6.5 kW."""
    cost = cost_of(10_000_000)
    time_s = 1000 * iteration().iteration_time_s
    assert (cost.num_iterations, cost.missing) == (1000, ())
    assert cost.time_s == pytest.approx(time_s, rel=1e-12)
    assert cost.gpu_hours == pytest.approx(4 * time_s / 3600, rel=1e-12)
    assert (cost.price, cost.currency) == (pytest.approx(3.43 * cost.gpu_hours), "USD")
    assert " USD (" in cost.headline and "USD" not in cost_of(10_000_000, "price").headline
    assert cost.gpu_energy_j == pytest.approx(4 * 400 * time_s, rel=1e-12)
    assert cost.node_energy_j == pytest.approx(6500 / 2 * time_s, rel=1e-12)
    interval = iteration().interval
    assert list(cost.time_interval_s.values()) == pytest.approx(
        [1000 * interval.p5_s, 1000 * interval.p95_s]
    )


def test_goodput_divides_time_price_and_energy() -> None:
    """With a goodput of 0.8, an hour of iterations takes 1.25 hours of training."""
    whole, slowed = cost_of(10_000_000), cost_of(10_000_000, goodput=0.8)
    assert slowed.num_iterations == whole.num_iterations
    for quantity in ("time_s", "gpu_hours", "price", "gpu_energy_j", "node_energy_j"):
        assert getattr(slowed, quantity) == pytest.approx(1.25 * getattr(whole, quantity))
    assert "take 20 % of the training time" in slowed.to_dict()["assumptions"][0]


def test_the_price_of_a_user_and_emissions_by_hand() -> None:
    """Half a node of 6.5 kW with a PUE of 1.2."""
    price = Price(per_hour=2.0, currency="EUR")
    cost, plain = cost_of(10_000_000, price=price, pue=1.2, co2_g_per_kwh=400.0), cost_of(10**7)
    assert (cost.price, cost.currency) == (pytest.approx(2.0 * cost.gpu_hours), "EUR")
    assert "AWS" in plain.sources["price"] and "AWS" not in cost.sources["price"]
    kwh = 3.25 * 1.2 * cost.time_s / 3600
    assert cost.site_energy_kwh == pytest.approx(kwh, rel=1e-12)
    assert cost.co2_t == pytest.approx(cost.to_dict()["energy_kwh"]["mean"] * 400e-6, rel=1e-12)
    assert plain.co2_t is None and plain.node_energy_j == cost.node_energy_j


@given(num_tokens=st.integers(1, 10**13), more=st.integers(0, 10**13))
def test_iterations_are_whole_and_more_tokens_never_cost_less(num_tokens: int, more: int) -> None:
    one, other = cost_of(num_tokens), cost_of(num_tokens + more)
    assert (one.num_iterations - 1) * 10_000 < num_tokens <= one.num_iterations * 10_000
    for quantity in ("gpu_hours", "price", "gpu_energy_j", "node_energy_j"):
        assert getattr(one, quantity) <= getattr(other, quantity)


@pytest.mark.parametrize("entry", ["price", "gpu_power", "host_power", "running_costs"])
def test_only_quantities_of_missing_entries_are_missing(entry: str) -> None:
    cost, whole = cost_of(10**9, entry), cost_of(10**9)
    quantity = {"price": "price", "gpu_power": "gpu_energy_j", "node_power": "node_energy_j"}
    missing = (*quantity,) if entry == "running_costs" else (entry,) * (entry in quantity)
    assert cost.missing == missing and cost.gpu_hours == whole.gpu_hours
    assert (cost.energy is None) == (entry in ("host_power", "running_costs"))
    for name, attribute in quantity.items():
        expected = None if name in missing else getattr(whole, attribute)
        assert getattr(cost, attribute) == expected


def test_the_mean_of_draws_has_the_error_of_their_spread() -> None:
    figure = DrawnFigure.of([1.0, 2.0, 3.0])
    assert (figure.mean, figure.mean_error) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert (figure.p5, figure.p95) == (pytest.approx(1.1), pytest.approx(2.9))
    assert DrawnFigure.of([4.0]) == DrawnFigure(4.0, 4.0, 4.0, 0.0)
    wider = figure.with_error((0.5, 2.0))
    assert math.log(2 / wider.p5) == pytest.approx(math.hypot(math.log(2 / 1.1), math.log(2)))
    assert math.log(wider.p95 / 2) == pytest.approx(math.hypot(math.log(2.9 / 2), math.log(2)))


# -------------------------------------------------------------------------- energy

H100 = load_profile("h100_sxm")


def power_w(shares: Sequence[float], num_gpus: int = 8) -> float:
    """Return the power of H100s that are idle, wait, run kernels and products for these shares."""
    return power_of(H100, dict(zip(GPU_POWERS, shares, strict=True)), num_gpus) or 0.0


def test_the_power_of_a_node_and_of_sixty_four_by_hand() -> None:
    """Fans turn faster the hotter a node is. 64 nodes have sixteen leaves and eight spines."""
    watts = {(1, 0, 0, 0): 134, (0, 1, 0, 0): 152, (0, 0, 1, 0): 442, (0, 0, 0, 1): 685}
    for shares, gpu_w in (watts | {(0.25, 0.25, 0, 0.5): (134 + 152) / 4 + 685 / 2}).items():
        heat_w = 8 * gpu_w + 1750
        node_w = heat_w + 1170 * (heat_w / (8 * 685 + 1750)) ** 3
        assert power_w(shares) == pytest.approx(node_w)
        assert power_w(shares, 512) == pytest.approx(64 * node_w + 24 * 1290)


@given(weights=st.lists(st.floats(0.01, 10), min_size=4, max_size=4), place=st.integers(1, 3))
def test_more_waiting_is_less_power(weights: list[float], place: int) -> None:
    """Time that moves from any work to less of it lowers the power, of one node and of 64."""
    shares = [weight / sum(weights) for weight in weights]
    less = [*shares]
    less[place - 1] += less[place] / 2
    less[place] /= 2
    for num_gpus in (8, 512):
        idle_w, products_w = power_w((1, 0, 0, 0), num_gpus), power_w((0, 0, 0, 1), num_gpus)
        assert idle_w < power_w(less, num_gpus) < power_w(shares, num_gpus) < products_w


def test_switches_join_the_nodes_of_a_training() -> None:
    """A switch serves four nodes. Above, eight adapters have a leaf each for 32 nodes, and half as
    many spines; 257 nodes need a third tier. NVLink joins a rack of 72 GPUs.
    """
    switches = {8: 0, 16: 1, 32: 1, 40: 12, 264: 24, 2048: 96, 2056: 180}
    assert {number: H100.num_switches(number, 64) for number in switches} == switches
    rack = load_profile("gb200")
    assert (rack.num_switches(72, 64), rack.num_switches(76, 64)) == (0, 6)


@pytest.mark.parametrize("split", [{}, {"tensor": 2, "pipeline": 2, "data": 2}])
def test_a_gpu_runs_products_and_other_kernels_or_waits(split: dict[str, int]) -> None:
    """A single GPU never waits for others. Collectives beside products slow them down a little."""
    model = {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024}
    layout = {"parallelism": split, "batch": {"micro": 1, "global": 8}, "recompute": "full"}
    result = simtrain.run(scenario_with(model, **layout), a100())
    rows = [row for stage in range(result.num_stages) for row in result.operators(stage).rows]
    products_s = sum(row.exposed_s for row in rows if row.flops) / result.num_stages
    times = result.breakdown_s
    waiting_s = sum(time_s for name, time_s in times.items() if name.endswith("communication"))
    shares, total_s = power_shares(result, 1.0), sum(times.values())
    seconds = {name: share * total_s for name, share in shares.items()}
    assert seconds["gpu_waiting_power"] == pytest.approx(waiting_s)
    assert (waiting_s > 0) == bool(split)
    assert seconds["gpu_product_power"] == pytest.approx(products_s, rel=0.03)
    kernels_s = times["compute"] + times["recompute"] + times["optimizer"]
    assert seconds["gpu_memory_power"] == pytest.approx(kernels_s - seconds["gpu_product_power"])


def test_a_cost_has_the_energy_of_what_its_gpus_do() -> None:
    base = load_scenario("llama3_70b")
    cost = simtrain.cost(base, "1B", goodput=1.0, pue=1.2, co2=332)
    kwh, shares = cost.to_dict()["energy_kwh"], power_shares(simtrain.run(base), 1.0)
    expected_w = power_of(H100, shares, cost.num_gpus)
    assert expected_w and kwh["mean"] == pytest.approx(1.2 * expected_w * cost.time_s / 3.6e6)
    assert kwh["p5"] < kwh["mean"] < kwh["nameplate"] == cost.site_energy_kwh
    busy = shares["gpu_product_power"] + shares["gpu_memory_power"]
    assert (kwh["busy_share"], kwh["waiting_share"]) == (busy, shares["gpu_waiting_power"])
    assert cost.co2_t == pytest.approx(kwh["mean"] * 332 / 1e6)


# -------------------------------------------------------------------------- the command


@pytest.fixture
def small(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        *(("--goodput", value, "--goodput: E842 ") for value in ("0", "-0.5", "1.5", "nan", "x")),
        ("--price", "3 USD", "--price: E848 "),
        ("--price", "3", 'write "3 USD/h"'),
        ("--tokens", "many", "--tokens: E841 "),
        ("--pue", "0.9", "--pue: E840 --pue is 0.9"),
        ("--pue", "nan", "--pue: E904 "),
        ("--co2", "-1", "--co2: E840 --co2 is -1"),
        ("--tokens", "5 GB", 'fix: write a number, plain or with K, M, B or T: "450e9"'),
    ],
)
def test_bad_terms_are_refused(small: str, option: str, value: str, words: str) -> None:
    terms = {"--tokens": "1B", option: value}
    options = [f"{name}={text}" for name, text in terms.items()]
    commands = [("cost", small), ("search", small, "--gpus", "2")]
    for command in commands[: 1 if option in ("--pue", "--co2") else 2]:
        assert words in refused(*command, *options)


def test_a_scenario_that_does_not_fit_has_a_cost_only_with_allow_oom(small: str) -> None:
    short = ("cost", small, "--tokens", "1B", "--set", "hardware.gpu.memory_capacity=2.2 GiB")
    stopped = call(*short)
    assert (stopped.exit_code, stopped.stdout) == (3, "")
    assert call(*short, "--allow-oom").exit_code == 0
