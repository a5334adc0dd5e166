"""Goodputs of scenarios: published trainings, one interval for one training, wrong questions."""

import json
import math
from typing import Any

import pytest

import simtrain
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.scenario import Scenario
from simtrain.studies.cost import Goodput, Terms
from simtrain.studies.goodput import failures_of
from simtrain.studies.planning import TrainingPlan
from simtrain.studies.requests import CostRequest
from tests.helpers.command_line import call

RATES = ("gpu", "network", "host", "software", "silent_corruption", "planned")


def scenario(**rates: float) -> Scenario:
    """Return the paper's 22B model on 8 GPUs, with other rates per GPU and day."""
    base = simtrain.load_scenario("table5_22b_present")
    changes = {f"hardware.reliability.{name}.per_gpu_day": rate for name, rate in rates.items()}
    return base.replace(changes) if changes else base


def small(base: Scenario | None = None, **fields: Any) -> Goodput:
    """Draw three trainings of 30 days."""
    cost = simtrain.cost(base or scenario(), **{"days": 30, "draws": 3} | fields)
    assert cost.training is not None
    return cost.training


@pytest.mark.slow
def test_llama_3_is_interrupted_as_published() -> None:
    """419 interruptions in 54 days and more than 90 % effective; the rates are its own."""
    base = simtrain.load_scenario("llama3_405b", ["batch.global=8192"])
    result = small(base, gpus=16384, days=54, draws=4)
    assert result.interruptions.mean == pytest.approx(419, rel=0.12)
    assert 0.88 < result.effective_ratio.mean < 0.94
    assert result.closed_form == pytest.approx(result.effective_ratio.mean, abs=0.02)


@pytest.mark.parametrize("name", ["table5_22b_present", "llama3_8b"])
def test_cost_goodput_and_plan_of_one_question_have_the_same_days(name: str) -> None:
    base = simtrain.load_scenario(name)
    cost = simtrain.cost(base, "100B")
    assert cost.training is not None
    goodput = cost.training
    assert f"drawn with the failures of {goodput.reliability}" in cost.assumptions[0]
    assert cost.time_s / 86_400 == pytest.approx(goodput.days.mean, rel=1e-12)
    ends = [end / 86_400 for end in cost.time_interval_s.values()]
    assert ends == pytest.approx([goodput.days.p5, goodput.days.p95], rel=1e-12)
    # Failures and the prediction's error together are wider than either, and than nothing.
    alone = simtrain.cost(base, "100B", goodput=1.0).time_interval_s
    assert (
        alone["p95"] / alone["p5"]
        < goodput.days.p95 / goodput.days.p5
        <= 1.05 * (alone["p95"] / alone["p5"])
    )
    plan = simtrain.search(base, base.num_gpus, tokens="100B", goodput="auto")
    assert isinstance(plan, TrainingPlan)
    (row,) = plan.rows
    assert row.best is not None and row.cost is not None
    again = small(row.best.evaluation.scenario, tokens="100B", days=None, draws=100)
    assert row.cost.time_s / 86_400 == pytest.approx(again.days.mean, rel=1e-12)
    assert row.cost.ends == pytest.approx(again.days.ends, rel=1e-12)


def test_a_training_of_some_days_has_the_predictions_error_in_its_tokens() -> None:
    result, interval = small(), simtrain.run(scenario()).interval
    low, high = (end_s / result.iteration_time_s for end_s in (interval.p5_s, interval.p95_s))
    assert result.days.p5 == result.days.p95 == pytest.approx(30)
    # Three draws hardly differ: the widths add up as those of normal distributions.
    assert result.tokens.p5 <= result.tokens.mean / high * (1 + 1e-12)
    assert result.tokens.p95 >= result.tokens.mean / low * (1 - 1e-12)
    assert result.tokens.p95 == pytest.approx(result.tokens.mean / low, rel=0.02)


def test_json_is_the_same_for_the_same_seed() -> None:
    words = ("cost", "table5_22b_present", "--days", "30", "--draws", "3", "--format=json")
    first, again = call(*words), call(*words)
    assert first.stdout == again.stdout
    assert json.loads(first.stdout)["training"]["days"]["mean"] == pytest.approx(30)
    assert call(*words, "--seed", "1").stdout != first.stdout
    assert small(draws=2).trainings == small(draws=3).trainings[:2]


def test_iterations_of_a_training_take_their_mean_time_if_they_vary() -> None:
    slow = scenario().replace({"variation.slow.factor": 2.0})
    usual, longer = (small(each, tokens="1B", days=None, draws=1) for each in (scenario(), slow))
    assert longer.iteration_time_s == simtrain.run(slow).draw().time.mean
    assert longer.days.mean > 1.4 * usual.days.mean
    assert longer.prediction == usual.prediction


def test_no_failures_are_the_plain_training() -> None:
    """With rates of 0, a training takes its iterations, its checkpoints and one start."""
    base = scenario(**dict.fromkeys(RATES, 0))
    result = small(base, tokens="1B", days=None, draws=2, checkpoint="blocking")
    (first, second), each = result.trainings, result.fleet.checkpoint
    assert first.seconds == second.seconds
    iterations = -(-1_000_000_000 // (base.batch.global_ * base.model.seq_length))
    assert first.seconds["work"] == pytest.approx(iterations * result.iteration_time_s)
    stops = -(-first.seconds["work"] // each.interval_s) - 1
    assert first.time_s - first.seconds["work"] == pytest.approx(
        stops * each.blocking_s + result.fleet.restart_s
    )
    assert result.young_interval_s is None


def test_a_profile_without_failures_takes_those_of_another_one() -> None:
    words = ("cost", "llama3_8b", "--days", "3", "--draws", "2", "--set", "cluster=b200_sxm")
    assert "those of h100_sxm stand in" in " ".join(call(*words, "--details").stdout.split())
    profile = load_profile("h100_sxm")
    copied = profile.model_copy(update={"reliability": None})
    assert failures_of(copied) == failures_of(profile)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"days": None}, "E885"),
        ({"tokens": "1B"}, "E885"),
        ({"days": None, "tokens": "1e20"}, "E886"),
        ({"gpus": 12}, "E886"),
        ({"checkpoint": "sync"}, "E886"),
        ({"interval": "often"}, "E887"),
        ({"interval": "1 ms"}, "E888"),
    ],
)
def test_wrong_questions_are_errors(fields: dict[str, object], code: str) -> None:
    with pytest.raises(InputError) as caught:
        small(**fields)
    assert caught.value.problems[0].code == code


@pytest.mark.parametrize(
    "changes",
    [
        *({f"{name}.per_gpu_day": rate} for name in RATES for rate in (1e4, 1e9)),
        {"gpu.detection": "1e12 s"},
        {"gpu.repair": "1e15 s"},
        {"restart.warm_up": "1e12 s"},
        {"silent_corruption.discovery": "1e12 s"},
        {"checkpoints.bytes_per_parameter": 1e12},
    ],
    ids=str,
)
def test_a_training_that_never_ends_is_refused_by_what_an_hour_costs(
    changes: dict[str, object],
) -> None:
    base = scenario().replace({f"hardware.reliability.{name}": v for name, v in changes.items()})
    with pytest.raises(InputError, match="E886 an hour of iterations takes more than 10 hours"):
        simtrain.cost(base, "300B", draws=40)


def test_too_many_failures_to_draw_are_refused_for_days_too() -> None:
    with pytest.raises(InputError, match=r"E886 .* failures and stops are to be drawn"):
        small(scenario(gpu=1e5), days=300, draws=100)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("days", (1e-3, 36_525), (0, 36_526, math.nan, True)),
        ("spares", (None, 0, 10**6), (-1, 10**6 + 1, 0.5)),
        ("draws", (1, 10**5), (0, 10**5 + 1)),
        ("seed", (0, 2**64), (-1, 2**64 + 1, 1.5)),
        ("pue", (1, 9.5), (0.99, math.inf, math.nan, "x")),
        ("co2", (None, 0, 380.5), (-1, math.inf)),
        ("goodput", ("auto", 0.01, 1), (0, 1.01, "all")),
    ],
)
def test_a_number_is_right_up_to_its_limits(name: str, right: Any, wrong: Any) -> None:
    def terms(value: object) -> Terms:
        usual = {} if name == "days" else {"tokens": "1B"}
        return Terms.read(CostRequest(scenario(), **usual | {name: value}))  # type: ignore[arg-type]

    assert [terms(value).num_tokens for value in right]
    for value in wrong:
        with pytest.raises(InputError, match=rf"--{name}: E\d+ --{name} is "):
            terms(value)
