"""The cost of training, calculated by hand, and the output of `simtrain cost`."""

import csv
import functools
import io
import json
import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import simtrain
from simtrain.base.resources import find_profile, list_profiles
from simtrain.commands import printing
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile, profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.render.terminal import terminal_page
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.cost import Terms, TrainingCost, training_cost
from simtrain.units import EnergyPrice, Price
from simtrain.views.cost import cost_view
from tests.helpers.command_line import call, refused
from tests.helpers.toys import a100, scenario_with

SMALL = """\
model: {num_layers: 2, hidden_size: 1024, num_attention_heads: 16, seq_length: 1000}
parallelism: {tensor: 2, pipeline: 2}
batch: {micro: 1, global: 10}
"""


@functools.cache
def scenario() -> Scenario:
    """Return a scenario with four GPUs and 10,000 tokens per iteration."""
    model = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "seq_length": 1000}
    split = {"tensor": 2, "pipeline": 2}
    return scenario_with(model, parallelism=split, batch={"micro": 1, "global": 10})


def cost_of(
    num_tokens: int, iteration_time_s: float = 3.6, profile: HardwareProfile | None = None
) -> TrainingCost:
    return training_cost(scenario(), profile or a100(), iteration_time_s, Terms(num_tokens))


def test_the_cost_of_a_thousand_iterations_by_hand() -> None:
    """1000 iterations of 3.6 s take an hour of four GPUs at 3.43 USD/h and 400 W, and of half a
    node of 6.5 kW.
    """
    cost = cost_of(10_000_000)
    assert cost.num_iterations == 1000
    assert cost.time_s == pytest.approx(3600, rel=1e-12)
    assert cost.gpu_hours == pytest.approx(4, rel=1e-12)
    assert (cost.price, cost.currency) == (pytest.approx(4 * 3.43, rel=1e-12), "USD")
    assert cost.gpu_energy_j == pytest.approx(4 * 400 * 3600, rel=1e-12)
    assert cost.node_energy_j == pytest.approx(6500 / 2 * 3600, rel=1e-12)
    assert cost.missing == ()


def test_goodput_divides_time_price_and_energy() -> None:
    """With a goodput of 0.8, an hour of iterations takes 1.25 hours of training."""
    whole = cost_of(10_000_000)
    slowed = training_cost(scenario(), a100(), 3.6, Terms(10_000_000, goodput=0.8))
    assert slowed.time_s == pytest.approx(4500, rel=1e-12)
    assert slowed.num_iterations == whole.num_iterations
    for quantity in ("gpu_hours", "price", "gpu_energy_j", "node_energy_j"):
        assert getattr(slowed, quantity) == pytest.approx(1.25 * getattr(whole, quantity))
    assert "take 20 % of the training time" in slowed.to_dict()["assumptions"][0]


@pytest.mark.parametrize("goodput", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_goodput_outside_0_to_1_is_refused(goodput: float) -> None:
    with pytest.raises(InputError, match="--goodput: E842 "):
        training_cost(scenario(), a100(), 3.6, Terms(10, goodput=goodput))


def test_a_users_price_replaces_the_profiles() -> None:
    price = Price(per_hour=2.0, currency="EUR")
    cost = training_cost(scenario(), a100(), 3.6, Terms(10_000_000, price=price))
    assert (cost.price, cost.currency) == (pytest.approx(4 * 2.0), "EUR")
    assert "AWS" not in cost.sources["price"]


def test_electricity_and_emissions_by_hand() -> None:
    """An hour of half a node of 6.5 kW with a PUE of 1.2 takes 3.9 kWh."""
    electricity = EnergyPrice(per_kwh=0.1, currency="EUR")
    terms = Terms(10_000_000, pue=1.2, electricity=electricity, co2_g_per_kwh=400.0)
    cost = training_cost(scenario(), a100(), 3.6, terms)
    assert cost.site_energy_kwh == pytest.approx(3.9, rel=1e-12)
    assert cost.electricity_cost == pytest.approx(0.39, rel=1e-12)
    assert cost.electricity_currency == "EUR" and cost.currency == "USD"
    assert cost.co2_t == pytest.approx(3.9 * 400e-6, rel=1e-12)
    plain = cost_of(10_000_000)
    assert (plain.electricity_cost, plain.co2_t) == (None, None)
    assert plain.price == cost.price and plain.node_energy_j == cost.node_energy_j


def test_each_contract_has_the_price_of_its_entry() -> None:
    costs = a100().running_costs
    assert costs is not None and costs.spot_price is not None
    spot = training_cost(scenario(), a100(), 3.6, Terms(10_000_000, contract="spot"))
    assert spot.price == pytest.approx(4 * costs.spot_price.value.per_hour)
    assert "spot market" in spot.sources["spot_price"] and "price" not in spot.sources
    whole = cost_of(10_000_000)
    assert whole.price_by_contract == spot.price_by_contract
    assert whole.price_by_contract == {"on_demand": whole.price, "spot": spot.price}
    reserved = training_cost(scenario(), a100(), 3.6, Terms(10_000_000, contract="reserved"))
    assert reserved.price is None and reserved.missing == ("reserved_price",)


def test_the_page_has_other_contracts_and_the_energy_of_the_site(small: str) -> None:
    on_h100 = ("cost", small, "--set", "cluster=h100_sxm", "--tokens", "1B")
    options = (*on_h100, "--pue", "1.2", "--electricity", "0.1 EUR/kWh", "--co2", "380")
    page = call(*options).stdout
    for words in ("on demand (reserved ", ", spot ", "energy of the site", " EUR", " tonnes"):
        assert words in page
    data = json.loads(call(*options, "--json").stdout)
    (row,) = csv.DictReader(io.StringIO(call(*options, "--csv").stdout))
    for name in ("price", "site_energy_kwh", "electricity_cost", "co2_t"):
        assert float(row[name]) == data[name] > 0
    markdown = call(*options, "--markdown").stdout
    assert "| CO2, tonnes |" in markdown and "| electricity |" in markdown
    spot = call(*on_h100, "--contract", "spot").stdout
    assert "can be interrupted" in spot and "can be interrupted" not in page


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--pue", "0.9", "E840 a PUE of 0.9"),
        ("--co2", "-1", "E840 a CO2 per kWh of -1"),
        ("--electricity", "0.1 USD", '"USD" is not a unit of price'),
        ("--electricity", "3", 'write "3 USD/kWh"'),
        ("--contract", "spto", "--contract"),
    ],
)
def test_bad_terms_are_refused(small: str, option: str, value: str, words: str) -> None:
    for command in (("cost", small), ("plan", small, "--gpus", "2")):
        assert words in refused(*command, "--tokens", "1B", option, value)


def test_a_contract_and_a_price_exclude_each_other(small: str) -> None:
    both = ("--price", "2 USD/h", "--contract", "spot")
    assert "--contract: E908" in refused("cost", small, "--tokens", "1B", *both)


@given(num_tokens=st.integers(1, 10**15))
def test_iterations_are_whole(num_tokens: int) -> None:
    iterations = cost_of(num_tokens).num_iterations
    assert (iterations - 1) * 10_000 < num_tokens <= iterations * 10_000


@given(num_tokens=st.integers(1, 10**13), more=st.integers(0, 10**13), time_s=st.floats(1e-3, 1e3))
def test_more_tokens_never_cost_less(num_tokens: int, more: int, time_s: float) -> None:
    one, other = cost_of(num_tokens, time_s), cost_of(num_tokens + more, time_s)
    for quantity in ("gpu_hours", "price", "gpu_energy_j", "node_energy_j"):
        assert getattr(one, quantity) <= getattr(other, quantity)


@pytest.mark.parametrize("entry", ["price", "gpu_power", "node_power"])
def test_only_quantities_of_missing_entries_are_missing(entry: str) -> None:
    costs = a100().running_costs
    assert costs is not None
    without = a100().model_copy(update={"running_costs": costs.model_copy(update={entry: None})})
    cost, whole = cost_of(10**9, profile=without), cost_of(10**9)
    quantity = {"price": "price", "gpu_power": "gpu_energy_j", "node_power": "node_energy_j"}
    assert cost.missing == (entry,)
    for name, attribute in quantity.items():
        expected = None if name == entry else getattr(whole, attribute)
        assert getattr(cost, attribute) == expected


def test_a_profile_without_running_costs_gives_gpu_hours_only() -> None:
    cost = cost_of(10**9, profile=a100().model_copy(update={"running_costs": None}))
    assert cost.missing == ("price", "gpu_power", "node_power")
    assert (cost.price, cost.gpu_energy_j, cost.node_energy_j) == (None, None, None)
    assert cost.gpu_hours > 0


def test_the_shipped_prices_have_an_instance_and_a_region() -> None:
    for name in list_profiles():
        costs = load_profile(name).running_costs
        # AWS publishes no price of a trn2.48xlarge on demand, and rents no DGX-2.
        if costs is None or costs.price is None:
            assert name in ("trn2", "v100_dgx2")
            continue
        assert "AWS " in costs.price.source and costs.price.value.currency == "USD"


@pytest.fixture
def small(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def test_the_command_prints_days_price_and_energy(small: str) -> None:
    run = json.loads(call("run", small, "--json").stdout)
    data = json.loads(call("cost", small, "--tokens", "300B", "--json").stdout)
    assert data["iteration_time_s"] == run["iteration_time_s"]
    assert data["num_iterations"] == 30_000_000
    assert data["time_s"] == 30_000_000 * run["iteration_time_s"]
    assert data["missing"] == [] and len(data["assumptions"]) == 2
    page = call("cost", small, "--tokens", "300B").stdout
    for words in (
        "300,000,000,000",
        " days",
        "GPU-hours",
        " USD",
        "at most",
        "failures, checkpoints and evaluations are excluded",
    ):
        assert words in page
    assert "p4de.24xlarge" in page


def test_several_scenarios_have_one_column_each(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "_PLAIN_WIDTH", 60)
    names = (small, "table5_22b_present", small)
    options = ("--tokens", "300B", "--goodput", "0.5")
    alone = [json.loads(call("cost", name, *options, "--json").stdout) for name in names]
    data = json.loads(call("cost", *names, *options, "--json").stdout)
    assert [one["profile"] for one in data["made_with"]] == ["a100_sxm4_80gb"]
    for one, expected in zip(data["costs"], alone, strict=True):
        assert one == {
            name: value
            for name, value in expected.items()
            if name not in ("made_with", "schema_version")
        }
    page = call("cost", *names, *options).stdout
    assert max(map(len, page.splitlines())) <= 60
    assert "small (1)" in page and "table5_22b_present" in page and "small (3)" in page
    prices = [word for line in page.splitlines() if "price  " in line for word in line.split()]
    assert prices.count("USD") == 3 and page.count("p4de.24xlarge") == 1


def test_the_command_names_missing_entries(small: str) -> None:
    done = call("cost", small, "--tokens", "300B", "--set", "cluster=trn1")
    assert done.exit_code == 0
    assert "energy" not in done.stdout.partition("Every iteration")[0]
    assert "running_costs.gpu_power, running_costs.node_power" in done.stdout
    assert "USD" in done.stdout


@pytest.mark.ci
@pytest.mark.slow
def test_cost_and_search_say_that_a_profile_is_not_calibrated(small: str) -> None:
    words = "not calibrated"
    for command in (("cost", small, "--tokens", "1B"), ("search", small, "--gpus", "2")):
        on_trn1 = (*command, "--set", "cluster=trn1")
        assert words in call(*on_trn1).stdout and words not in call(*command).stdout
        data = json.loads(call(*on_trn1, "--json").stdout)
        assert (data["calibrated"], data["evidence"]["level"]) == (False, "datasheet")
        assert json.loads(call(*command, "--json").stdout)["calibrated"] is True
    plan = ("plan", small, "--tokens", "1B", "--gpus", "2", "--cluster")
    assert words in call(*plan, "trn1").stdout and words not in call(*plan, "h100_sxm").stdout


def shown(num_tokens: int, iteration_time_s: float) -> dict[str, str]:
    """Return the rows of the page, by their first column."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(
            terminal_page(cost_view([cost_of(num_tokens, iteration_time_s)], is_table=False))
        )
    rows = (line.split("  ", 1) for line in capture.get().splitlines() if "  " in line)
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


def test_small_and_large_quantities_are_readable() -> None:
    little = shown(10_000, 36.0)
    assert little["time"].startswith("36 s (") and little["GPU-hours"] == "0.04"
    assert re.fullmatch(
        r"0\.1372 USD \(0\.1\d+–0\.1\d+\) on demand \(spot 0\.04656\)", little["price"]
    )
    assert shown(10_000, 18_000.0)["time"].startswith("5 hours (")
    assert shown(10_000, 86_400.0)["time"].startswith("24 hours (")
    assert shown(10_000 * 12_345, 86_400.0)["time"].startswith("12,345 days (")


def test_intervals_of_a_cost_are_those_of_its_iteration() -> None:
    scenario = load_scenario("table5_22b_present")
    cost = training_cost(scenario, profile_of(scenario), 2.0, Terms(10**12))
    for end, at_s in (("p5", cost.interval.p5_s), ("p95", cost.interval.p95_s)):
        assert cost.time_interval_s[end] == pytest.approx(cost.time_s * at_s / 2.0)
        assert cost.price is not None and cost.price_interval is not None
        assert cost.price_interval[end] == pytest.approx(cost.price * at_s / 2.0)


def test_a_price_in_another_currency_can_be_set(small: str) -> None:
    price = "hardware.running_costs.price=2 EUR/h"
    done = call("cost", small, "--tokens", "1.5T", "--set", price, "--json")
    data = json.loads(done.stdout)
    assert data["price"] == pytest.approx(2 * data["gpu_hours"], rel=1e-12)
    assert data["currency"] == "EUR"


@pytest.mark.parametrize(
    ("tokens", "excerpt"),
    [
        ("300GB", '"GB" is a unit of memory, not of tokens'),
        ("-3B", "must be above zero"),
        ("0", "must be above zero"),
        ("nan", "is not a finite number"),
        ("many", "is not a quantity"),
        ("1.5", "is not a whole number of tokens"),
        ("1,000", '",000" is not a unit of tokens'),
        ("1_000", '"_000" is not a unit of tokens'),
        ("300k", '"k" alone is ambiguous'),
    ],
)
def test_a_bad_number_of_tokens_is_refused(small: str, tokens: str, excerpt: str) -> None:
    done = call("cost", small, f"--tokens={tokens}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("--tokens: E841 ")
    assert excerpt in done.stderr
    fix = 'fix: write a number, plain or with K, M, B or T: "450e9", "300B", "1.5T"'
    assert done.stderr.rstrip().endswith(fix)


def test_a_scenario_that_does_not_fit_has_a_cost_only_with_allow_oom(small: str) -> None:
    short = ("cost", small, "--tokens", "1B", "--set", "hardware.gpu.memory_capacity=2.2 GiB")
    refused = call(*short)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert call(*short, "--allow-oom").exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "excerpt"),
    [
        ("3.43 USD/h", "3.43 USD", '"USD" is not a unit of price'),
        ("3.43 USD/h", "0 USD/h", "must be above zero"),
        ("400 W", "400 GB", '"GB" is a unit of memory, not of power'),
        ("6.5 kW", "3.1 kW", "3.1 kW is less than the 3.2 kW of its GPUs"),
    ],
)
def test_a_profile_with_absurd_costs_is_refused(
    old: str, new: str, excerpt: str, tmp_path: pathlib.Path
) -> None:
    text = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")
    assert f"value: {old}" in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(f"value: {old}", f"value: {new}"), encoding="utf-8")
    done = call("profile", "check", str(path))
    assert done.exit_code == 2
    assert excerpt in done.stderr and "running_costs" in done.stderr


def test_iterations_that_vary_cost_their_mean_time() -> None:
    varied = load_scenario("table5_22b_present", ["variation.kernels=0.05"])
    plain = load_scenario("table5_22b_present")
    cost = simtrain.cost(varied, "1B")
    assert cost.iteration_time_s == simtrain.draw(varied).time.mean
    assert cost.iteration_time_s > simtrain.cost(plain, "1B").iteration_time_s
