"""Whole iterations of Chimera and Hanayo: both engines, weights, activations and reductions."""

import pytest

from simtrain.iteration.report.result import Result
from simtrain.scenario.check import load_scenario
from simtrain.studies.simulation import simulate

CASES = {"1f1b": 1, "chimera": 1, "chimera_double": 1, "hanayo": 2, "two waves": 4}
P = 4


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Four microbatches of the paper's 22B model on four stages of 12 layers."""
    changes = {"parallelism.pipeline": P, "batch.global": 16, "model.tied_embeddings": False}
    base = load_scenario("table5_22b_present").replace(changes)
    names = {"two waves": "hanayo"}
    return {
        case: simulate(
            base.replace({"schedule": names.get(case, case), "parallelism.interleave": chunks})
        )
        for case, chunks in CASES.items()
    }


def parts(result: Result, name: str) -> list[int]:
    return [stage.components_bytes[name] for stage in result.memory.stages]


def test_chimera_keeps_weights_twice_and_hanayo_once(results: dict[str, Result]) -> None:
    """Table 2 of Li and Hoefler 2021; each rank has the stages r and p - 1 - r."""
    once = parts(results["1f1b"], "parameters")
    both = [near + far for near, far in zip(once, reversed(once), strict=True)]
    assert parts(results["chimera"], "parameters") == both
    for case in ("hanayo", "two waves"):
        assert sum(parts(results[case], "parameters")) == sum(once)
        # The first rank has both the embedding and the loss.
        assert parts(results[case], "parameters")[1:3] == once[1:3]
    assert {result.plan.num_parameters for result in results.values()} == {
        results["1f1b"].plan.num_parameters
    }


def test_both_directions_reduce_their_gradients_together(results: dict[str, Result]) -> None:
    """Rank r and rank p - 1 - r have the same stages, so an all-reduce of two adds them up."""
    one, two = results["1f1b"].plan.step_options, results["chimera"].plan.step_options
    assert (one.data.num_ranks, two.data.num_ranks) == (1, 2)
    assert results["1f1b"].breakdown.data_communication_s == 0
    assert results["chimera"].breakdown.data_communication_s > 0


def test_peaks_of_activations_in_bytes(results: dict[str, Result]) -> None:
    """Ranks without an end of the model keep the closed forms' microbatches of their layers."""
    one = parts(results["1f1b"], "activations")
    microbatch = one[1] // (P - 1)
    assert one[1:3] == [(P - 1) * microbatch, (P - 2) * microbatch]
    assert parts(results["chimera"], "activations")[1:3] == [P * microbatch] * 2
    for case, waves in (("hanayo", 1), ("two waves", 2)):
        kept = [((2 * waves - 1) * P + 1 + rank) * microbatch for rank in (1, 2, 3)]
        assert parts(results[case], "activations")[1:] == [chunks // (2 * waves) for chunks in kept]


def test_all_run_the_same_work(results: dict[str, Result]) -> None:
    assert len({result.model_flops for result in results.values()}) == 1
    assert len({result.hardware_flops for result in results.values()}) == 1
    times_s = {case: result.iteration_time_s for case, result in results.items()}
    assert times_s["two waves"] < times_s["hanayo"] < times_s["1f1b"]
