"""The report on an iteration: parts of the breakdown, utilization and extrapolated ops."""

import pytest
from hypothesis import strategies as st

from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import a100, paper_scenario, run, small


def scenarios() -> st.SearchStrategy[Scenario]:
    """Draw scenarios with any recompute and schedule, with and without overlap, on
    up to 64 GPUs.
    """

    @st.composite
    def draw_one(draw: st.DrawFn) -> Scenario:
        schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
        interleaved = schedule == "interleaved"
        tensor = draw(st.sampled_from([1, 2, 8]))
        return small(
            {
                "tensor": tensor,
                "sequence_parallel": tensor > 1 and draw(st.booleans()),
                "pipeline": 4 if interleaved else draw(st.sampled_from([1, 2, 4])),
                "interleave": 2 if interleaved else 1,
                "data": draw(st.sampled_from([1, 2])),
            },
            schedule=schedule,
            recompute=draw(st.sampled_from(["none", "selective", "full"])),
            overlap={
                "tensor_parallel": draw(st.booleans()),
                "pipeline": interleaved and draw(st.booleans()),
                "data_parallel": draw(st.booleans()),
            },
        )

    return draw_one()


def test_utilization_follows_from_its_definition() -> None:
    """Section 6.3: FLOPs divided by iteration time, number of GPUs and 312 TFLOP/s."""
    scenario = small({"data": 2}, recompute="full")
    result = run(scenario)
    s, h, v, num_layers = 2048, 4096, 51200, 8
    assert result.model_flops == pytest.approx(
        72 * 16 * num_layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * num_layers))
    )
    available = 312e12 * 32 * result.iteration_time_s
    assert result.mfu == pytest.approx(result.model_flops / available)
    assert result.hfu == pytest.approx(result.hardware_flops / available)
    assert result.tokens_per_s == pytest.approx(16 * 2048 / result.iteration_time_s)
    assert result.num_simulated_ranks == 4


@pytest.mark.parametrize("model", ["175B"])
def test_extrapolated_ops_are_named(model: str) -> None:
    result = simulate(paper_scenario(model, sequence=True, recompute="selective"), a100())
    assert "logits" not in result.extrapolated
    assert "gradient norm all-reduce" in result.extrapolated
