"""Goodputs of scenarios: published trainings, determinism, and wrong questions."""

import json
import pathlib

import pytest

import simtrain
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.studies.goodput.entries import failures_of
from simtrain.studies.goodput.result import Goodput
from tests.helpers.command_line import call


def small(**fields: object) -> Goodput:
    """Draw trainings of the paper's 22B model on 8 GPUs."""
    scenario = simtrain.load_scenario("table5_22b_present")
    return simtrain.goodput(scenario, **{"days": 30, "draws": 3} | fields)  # type: ignore[arg-type]


@pytest.mark.slow
def test_llama_3_is_interrupted_as_published() -> None:
    """419 interruptions in 54 days and more than 90 % effective; the rates are its own."""
    scenario = simtrain.load_scenario("llama3_405b")
    result = simtrain.goodput(scenario, gpus=16384, days=54, draws=4)
    assert result.interruptions.mean == pytest.approx(419, rel=0.12)
    assert 0.88 < result.effective_ratio.mean < 0.94
    assert result.closed_form == pytest.approx(result.effective_ratio.mean, abs=0.02)
    assert result.hinges[0].entry == "reliability.gpu.per_gpu_day"
    by_replica = simtrain.goodput(scenario, gpus=16384, days=54, draws=4, recovery="replica")
    assert by_replica.effective_ratio.mean > result.effective_ratio.mean


def test_json_is_the_same_for_the_same_seed() -> None:
    words = ("goodput", "table5_22b_present", "--days", "30", "--draws", "3", "--json")
    first, again = call(*words), call(*words)
    assert first.stdout == again.stdout
    data = json.loads(first.stdout)
    for name in ("effective_training_time_ratio", "interruptions", "days"):
        assert {"mean", "p5", "p95"} <= data[name].keys()
    assert data["days"]["mean"] == pytest.approx(30)
    assert data["lost_hours"].keys() >= {"lost work", "restart", "detection"}
    assert data["checkpoint_interval_s"] > 0
    assert call(*words, "--seed", "1").stdout != first.stdout


def test_iterations_of_a_training_take_their_mean_time_if_they_vary() -> None:
    scenario = simtrain.load_scenario("table5_22b_present")
    slow = scenario.replace({"variation.slow.factor": 2.0})
    usual, longer = (simtrain.goodput(each, tokens="1B", draws=1) for each in (scenario, slow))
    assert longer.iteration_time_s == simtrain.draw(slow).time.mean
    assert longer.iteration_time_s > 1.5 * usual.iteration_time_s
    assert longer.days.mean > 1.4 * usual.days.mean


def test_fewer_draws_are_the_first_of_more() -> None:
    assert small(draws=2).trainings == small(draws=3).trainings[:2]


def test_no_failures_are_the_plain_training() -> None:
    """With rates of 0, a training takes its iterations, its checkpoints and one start."""
    names = ("gpu", "network", "host", "software", "planned", "silent_corruption")
    none = {f"hardware.reliability.{name}.per_gpu_day": 0 for name in names}
    scenario = simtrain.load_scenario("table5_22b_present").replace(none)
    result = simtrain.goodput(scenario, tokens="1B", draws=2, checkpoint="blocking")
    (first, second), each = result.trainings, result.fleet.checkpoint
    assert first.seconds == second.seconds
    iterations = -(-1_000_000_000 // (scenario.batch.global_ * scenario.model.seq_length))
    assert first.seconds["work"] == pytest.approx(iterations * result.iteration_time_s)
    stops = -(-first.seconds["work"] // each.interval_s) - 1
    assert first.time_s - first.seconds["work"] == pytest.approx(
        stops * each.blocking_s + result.fleet.restart_s
    )
    assert result.young_interval_s is None


def test_gpus_add_replicas_with_their_batch_and_nodes() -> None:
    result = small(gpus=64)
    assert (result.num_gpus, result.fleet.num_replicas, result.fleet.num_nodes) == (64, 8, 8)
    # Each replica has as much work as before, and gradients are reduced in addition.
    assert result.iteration_time_s >= small().iteration_time_s


def test_a_profile_without_failures_takes_those_of_another_one() -> None:
    result = call(
        "goodput", "llama3_8b", "--days", "3", "--draws", "2", "--set", "cluster=b200_sxm"
    )
    assert "those of h100_sxm stand in" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"days": None}, "E885"),
        ({"tokens": "1B"}, "E885"),
        ({"days": 0}, "E886"),
        ({"days": float("nan")}, "E886"),
        ({"spares": -1}, "E886"),
        ({"days": 1e9}, "E886"),
        ({"days": None, "tokens": "1e20"}, "E886"),
        ({"draws": 0}, "E886"),
        ({"draws": 10**9}, "E886"),
        ({"seed": 1.5}, "E886"),
        ({"gpus": 12}, "E886"),
        ({"interval": "often"}, "E887"),
        ({"interval": "1 ms"}, "E888"),
        ({"reliability": "trn1"}, "E889"),
        ({"days": True}, "E886"),
        ({"checkpoint": "sync"}, "E886"),
        ({"recovery": "none"}, "E886"),
        ({"without_spare": "grow"}, "E886"),
        ({"checkpoint": "memory"}, "E886"),
    ],
)
def test_wrong_questions_are_errors(fields: dict[str, object], code: str) -> None:
    with pytest.raises(InputError) as caught:
        small(**fields)
    assert caught.value.problems[0].code == code


@pytest.mark.parametrize("rate", [1e5, 1e9])
def test_a_training_that_never_ends_is_an_error(rate: float) -> None:
    """Something fails more often than a checkpoint is written."""
    scenario = simtrain.load_scenario("table5_22b_present")
    often = scenario.replace({"hardware.reliability.gpu.per_gpu_day": rate})
    for fields in ({"tokens": "10B"}, {"days": 300}):
        with pytest.raises(InputError) as caught:
            simtrain.goodput(often, draws=1, **fields)  # type: ignore[arg-type]
        assert caught.value.problems[0].code == "E886"


@pytest.mark.parametrize("rate", ["-1", "nan", "true"])
def test_wrong_rates_are_errors(rate: str) -> None:
    words = ("--set", f"hardware.reliability.gpu.per_gpu_day={rate}")
    outcome = call("goodput", "table5_22b_present", "--days", "1", *words)
    assert outcome.exit_code == 2
    assert "per_gpu_day" in outcome.stderr


def test_a_changed_copy_of_the_fallback_without_failures_takes_those_of_the_original() -> None:
    profile = load_profile("h100_sxm")
    copied = profile.model_copy(update={"reliability": None})
    name, reliability = failures_of(copied)
    assert (name, reliability) == ("h100_sxm", profile.reliability)
    assert failures_of(copied, "h100_sxm") == (name, reliability)


def test_a_cost_says_whose_failures_it_takes() -> None:
    scenario = simtrain.load_scenario("table5_22b_present")
    cost = simtrain.cost(scenario, "1B", goodput="auto")
    assert cost.failures == cost.to_dict()["failures"] == "a100_sxm4_80gb"
    assert "drawn with the failures of a100_sxm4_80gb" in cost.assumptions[0]
    assert "drawn" not in simtrain.cost(scenario, "1B", goodput=0.9).assumptions[0]


def test_checkpoints_in_memory_take_the_network() -> None:
    """8 nodes of 8 adapters with 25 GB/s each, at the efficiency of whole nodes."""
    result = small(gpus=64, checkpoint="memory")
    scenario = simtrain.load_scenario("table5_22b_present")
    profile = load_profile(scenario.cluster)
    assert profile.inter_node is not None and profile.reliability is not None
    bytes_per_s = 8 * 8 * 25e9 * profile.inter_node.whole_node_efficiency.value
    num_parameters = simtrain.simulate(scenario).num_parameters
    copied = num_parameters * profile.reliability.checkpoints.bytes_per_parameter.value
    blocking_s = result.fleet.checkpoint.blocking_s
    assert result.checkpoint_write_s - blocking_s == pytest.approx(copied / bytes_per_s)
    assert result.checkpoint_write_s < small(gpus=64).checkpoint_write_s


def test_a_page_shows_one_training_over_its_days(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "training.html"
    words = ("--days", "30", "--gpus", "1024", "--draws", "2", "--out", str(page))
    assert call("goodput", "table5_22b_present", *words).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "from day 26" in text and "lost work" in text and "<svg" in text
