"""Iterations that vary: closed forms, symmetry, determinism, and wrong questions."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simtrain
from simtrain.studies.variation import Distribution
from tests.helpers.command_line import call
from tests.helpers.varied_iterations import STILL, drawn, mean_of_largest, replicas, small


@pytest.mark.parametrize("varies", ["kernels", "gpu_spread"])
def test_ranks_that_wait_for_each_other_in_every_layer_vary_together(varies: str) -> None:
    """One stage of one replica waits for no other: noise alone makes its mean no longer."""
    scenario, sigma = small({"parallelism.tensor": 4}), 0.02
    times = [drawn(scenario, {f"variation.{varies}": sigma}, draws=400, seed=s) for s in range(9)]
    means = np.array([each.time.mean / each.usual_s - 1 for each in times])
    assert abs(means.mean()) < 0.8 * sigma, "the largest of 4 is 1.03 σ longer"
    assert (np.abs(means) < 4 * sigma).all() and (means != 0).all()


def test_a_stage_is_as_slow_as_its_slowest_rank() -> None:
    scenario = small({"parallelism.tensor": 4})
    slow = {
        what: drawn(scenario, {"variation.slow": {"what": what, "factor": 1.3}}, draws=1)
        for what in ("gpu", "node")
    }
    assert slow["gpu"].time == slow["node"].time
    assert slow["gpu"].time.mean > slow["gpu"].usual_s


def test_a_barrier_waits_for_the_slowest_of_n_replicas() -> None:
    """The mean is longer by σ·m(n) times the root of the summed squares of independent times.

    m(n) is the mean of the largest of n normal numbers. Replicas meet at the reduction, after the
    passes and the average of gradients, and at the end, after the norm and the update.
    """
    seconds, sigma = simtrain.run(replicas(2)).seconds, 0.02
    step = seconds.steps[0]
    passes_s = [time.duration_s for time in seconds.passes.values()]
    meeting_s = math.hypot(*passes_s, step["average"]) + math.hypot(step["norm"], step["update"])
    for number in (2, 8, 32):
        result = drawn(replicas(number), {"variation.kernels": sigma}, draws=6000)
        excess_s = sigma * mean_of_largest(number) * meeting_s
        assert result.time.mean - result.usual_s == pytest.approx(excess_s, rel=0.03), number


@given(st.floats(1.0, 5.0))
@settings(max_examples=5, deadline=None)
def test_kernels_of_a_slow_gpu_take_as_many_times_as_long(factor: float) -> None:
    """A single GPU that waits for nothing else takes the factor."""
    slow = drawn(small(), {"variation.slow": {"factor": factor}}, draws=2)
    assert slow.time.mean == pytest.approx(factor * slow.usual_s, rel=1e-9)
    assert slow.time.deviation == 0


def test_it_does_not_matter_which_replica_is_slow() -> None:
    scenario = replicas(4, {"parallelism.tensor": 2})
    times = {
        drawn(scenario, {"variation.slow": {"rank": rank, "factor": 1.5}}, draws=1).time.mean
        for rank in range(8)
    }
    assert len(times) == 1


def test_replicas_that_do_not_differ_share_a_simulation() -> None:
    slow = drawn(replicas(8), {"variation.slow": {"rank": 5, "factor": 1.5}}, draws=1)
    assert slow.num_simulated_ranks == 2
    assert drawn(replicas(8), {"variation.gpu_spread": 0.01}, draws=1).num_simulated_ranks == 8
    assert drawn(replicas(8), {}, draws=1).num_simulated_ranks == 1


def test_a_slow_link_slows_what_leaves_its_node_alone() -> None:
    """16 replicas on two nodes reduce gradients between them; the reduction takes the factor."""
    scenario = replicas(16)
    usual = simtrain.run(scenario)
    slow = drawn(scenario, {"variation.slow": {"what": "link", "factor": 3}}, draws=1)
    reduction_s = usual.seconds.steps[0]["data_reduction"]
    assert slow.time.mean == pytest.approx(usual.iteration_time_s + 2 * reduction_s)


def test_pauses_come_at_their_rate() -> None:
    """On one GPU each pause adds its time: rate × computing time × mean duration."""
    per_hour, usual_s = 3600 * 200.0, simtrain.run(small()).iteration_time_s
    pauses = {"variation.pauses": {"per_gpu_hour": per_hour, "duration": "1 ms"}}
    result = drawn(small(), pauses, draws=20_000)
    assert result.time.mean - usual_s == pytest.approx(200 * usual_s * 1e-3, rel=0.05)


def test_a_scenario_that_varies_is_drawn_without_being_told() -> None:
    words = ("run", "table5_22b_present", "--format=json", "--set", "variation.slow.factor=2")
    outcome = call(*words)
    assert outcome.stdout == call(*words).stdout
    variation = json.loads(outcome.stdout)["variation"]
    assert variation["slowdown"] > 1.5 and (variation["draws"], variation["seed"]) == (100, 0)
    time = variation["iteration_time_s"]
    assert time["mean_low"] < time["mean"] < time["mean_high"]
    assert "variation" not in json.loads(call(*words[:3]).stdout)


def test_the_terminal_names_the_barrier() -> None:
    words = ("--set", "parallelism.data=4", "--set", "batch.global=16", "--draws", "20")
    shown = call("run", "table5_22b_present", *words).stdout
    assert "barrier waits for the slowest of 4" in " ".join(shown.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--draws", "0"), "E960"),
        (("--draws", "5", "--seed", "-1"), "E960"),
        (("--set", "variation.slow={rank: 8, factor: 2}"), "E961"),
        (("--set", "variation.slow={what: link, factor: 2}"), "E962"),
        (("--seed", "1"), "E908"),
        (("--draws", "5", "--show", "ops"), "E908"),
        (("--set", "variation.kernels=-0.1"), "E20"),
        (("--set", "variation.kernels=0.5"), "E20"),
        (("--set", "variation.slow={factor: 0.5}"), "E20"),
        (("--set", "variation.pauses.duration=-1 s"), "E20"),
    ],
)
def test_a_wrong_question_has_an_error(words: tuple[str, ...], code: str) -> None:
    answer = call("run", "table5_22b_present", *words)
    assert answer.exit_code == 2 and code in answer.stderr, answer.stderr


def test_the_error_of_the_mean_covers_what_other_seeds_give() -> None:
    """All draws of a seed have the same GPUs, so their spread alone says nothing of other GPUs."""
    scenario = small({"parallelism.tensor": 4})
    changes = {**STILL, "variation.gpu_spread": 0.02}
    times = [drawn(scenario, changes, draws=2, seed=seed).time for seed in range(12)]
    means = [time.mean for time in times]
    assert np.std(means) > 0 and times[0].deviation == 0
    inside = sum(time.mean_low <= np.mean(means) <= time.mean_high for time in times)
    assert inside >= 10
    assert times[0].mean_error == pytest.approx(np.std(means[1:9], ddof=1))


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=200))
@settings(max_examples=60, deadline=None)
def test_a_distribution_has_its_statistics_in_order(times: list[float]) -> None:
    found = Distribution.of(np.array(times), 1.0)
    in_order = found.least, found.p5, found.p50, found.p95, found.p99, found.most
    assert list(in_order) == sorted(in_order)
    assert found.mean == pytest.approx(np.mean(times))
    deviation = np.std(times, ddof=1) if len(times) > 1 else 0.0
    assert found.deviation == pytest.approx(deviation, abs=1e-12)
    assert found.mean_error == pytest.approx(deviation / math.sqrt(len(times)), abs=1e-12)
    width = found.mean_high - found.mean_low
    assert width == pytest.approx(2 * 1.96 * found.mean_error, abs=1e-12)
    for share, value in ((0.05, found.p5), (0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert np.mean(np.array(times) <= value) >= share - 1e-9
        assert np.mean(np.array(times) < value) < share
