"""Throughputs that Qi et al. 2023 printed, from the stage times that they measured.

Zero Bubble Pipeline Parallelism (arXiv 2401.10241): samples per GPU and second of Table 4; seconds
of a stage's F, I, W and of a message from the authors' profiles, which are the examples of
v_schedule.py in sail-sg's zero-bubble repository. Their automatic schedules stand for the
handcrafted ones of equal memory. Nothing is fitted.
"""

import pytest

from simtrain.engine import simulate
from simtrain.schedules import build
from tests.helpers.pipelines import PipelineSeconds, pipeline_program

pytestmark = pytest.mark.slow

ORDERS = {"1F1B": "1f1b", "ZB-1p": "zb_h1", "ZB-2p": "zb_h2"}
Microseconds = tuple[int, int, int, int]


def iteration_us(order: str, p: int, n: int, times: Microseconds) -> float:
    """Return the time of 1F1B, or the longest time from a stage's first to its last pass.

    Without a barrier between iterations, stages of the others begin one after the other.
    """
    schedule, (forward, inputs, weights, message) = build(order, p, 1, n), times
    took = {"F": forward, "I": inputs, "W": weights, "B": inputs + weights}
    seconds = PipelineSeconds(lambda action: took[action.kind], lambda *_: message)
    program, tasks = pipeline_program(schedule, seconds, overlap=True)
    timeline, starts = simulate(program), schedule.rank_starts
    if order == "1f1b":
        return timeline.makespan_s
    ends, begins = timeline.end_s[tasks.last], timeline.start_s[tasks.first]
    return float((ends[starts[1:] - 1] - begins[starts[:-1]]).max())


@pytest.mark.parametrize(
    ("p", "n", "times", "samples_per_s", "limit"),
    [
        # W takes half as long as F: their automatic schedule is better than ZB-H2.
        (8, 32, (18513, 18086, 9331, 626), {"1F1B": 12.5, "ZB-2p": 14.8}, 0.035),
        (8, 32, (29802, 29428, 19530, 577), {"1F1B": 3.7, "ZB-1p": 4.0, "ZB-2p": 4.35}, 0.015),
        (16, 48, (11347, 11248, 8132, 377), {"1F1B": 1.4, "ZB-1p": 1.61}, 0.01),
        (16, 64, (11307, 11254, 8101, 379), {"1F1B": 1.49, "ZB-2p": 1.83}, 0.03),
    ],
    ids=["1.5B", "6.2B", "14.6B, 48 microbatches", "14.6B, 64 microbatches"],
)
def test_speedups_over_1f1b_are_those_printed(
    p: int, n: int, times: Microseconds, samples_per_s: dict[str, float], limit: float
) -> None:
    took = {name: iteration_us(ORDERS[name], p, n, times) for name in samples_per_s}
    assert sorted(took, key=lambda name: -took[name]) == sorted(took, key=samples_per_s.__getitem__)
    for name, printed in samples_per_s.items():
        speedup = took["1F1B"] / took[name]
        assert speedup == pytest.approx(printed / samples_per_s["1F1B"], rel=limit)
