"""Vocabularies that stages split (Yeung et al. 2024): passes, barriers, bubbles and peaks."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import Program, Task, Timeline, simulate
from simtrain.schedules import Messages, OrderOptions, build, most_outstanding
from simtrain.schedules.vocabulary import SPLITS, vocabulary_steps

GOLDEN = Path(__file__).parent / "golden"
CASES = [("1f1b", 1, name) for name in SPLITS]
CASES += [("v_half", 2, name) for name, split in SPLITS.items() if split.num_intervals]


def timeline(
    schedule: str,
    p: int,
    m: int,
    n: int,
    split: str,
    *,
    took: dict[str, float],
    vocabulary_s: float = 0.0,
    collective_s: float = 0.0,
) -> Timeline:
    """Run a schedule whose vocabulary passes and collectives take these times."""
    order = build(schedule, p, m, n, OrderOptions(vocabulary=SPLITS[split]))
    steps, messages = vocabulary_steps(order, SPLITS[split]), Messages.of(order)
    number, walk = len(order.kind), order.placement.num_walked
    waits: list[list[int]] = [[] for _ in range(number)]
    for producer, consumer in zip(
        messages.producer.tolist(), messages.consumer.tolist(), strict=True
    ):
        waits[consumer].append(producer)
    for place, step in enumerate(steps):
        for action in step.after.tolist():
            waits[action].append(number + place)
    tasks = []
    for place in range(number):
        action = order.action(place)
        seconds = took[action.kind] if action.virtual_stage < walk else vocabulary_s
        stream = f"rank {order.rank[place]}"
        tasks.append(Task(str(action), stream, seconds, tuple(waits[place])))
    for step in steps:
        tasks.append(Task(step.name, "vocabulary", collective_s, tuple(step.before.tolist())))
    return simulate(Program.of(tasks))


@pytest.mark.parametrize(("schedule", "m", "split"), CASES)
def test_orders_equal_the_golden_files(schedule: str, m: int, split: str) -> None:
    """With V = 4 m, V + r is the embedding of rank r, V + 4 + r its output layer (F: S, B: T)."""
    order = build(schedule, 4, m, 8, OrderOptions(vocabulary=SPLITS[split]))
    order.validate()
    assert order.to_csv() == (GOLDEN / f"{schedule}_{split}_p4_m8.csv").read_text()


@given(st.integers(2, 9), st.integers(1, 24), st.sampled_from(CASES))
@settings(max_examples=30)
def test_no_order_has_a_deadlock(p: int, n: int, case: tuple[str, int, str]) -> None:
    schedule, m, split = case
    build(schedule, p, m, n, OrderOptions(vocabulary=SPLITS[split])).validate()
    took = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
    least = n * m * 3.0
    assert timeline(schedule, p, m, n, split, took=took, vocabulary_s=0.1).makespan_s >= least


@pytest.mark.parametrize("p", [2, 4, 7, 8])
def test_each_barrier_costs_a_microbatch(p: int) -> None:
    """Peaks of 1F1B: p + 2 microbatches with two barriers, p + 1 with one, 1.5 p if interlaced;
    of V-Half: as many more in whole stages, on every stage.
    """
    n = 6 * p
    for split, peak in (("vocab_1", p + 2), ("vocab_2", p + 1), ("interlaced", p + p // 2)):
        most = most_outstanding(build("1f1b", p, 1, n, OrderOptions(vocabulary=SPLITS[split])))
        assert most[0] == peak
        assert (np.diff(most) < 0).all()
    before = most_outstanding(build("v_half", p, 2, n))
    for split, more in (("vocab_1", 2), ("vocab_2", 1)):
        most = most_outstanding(build("v_half", p, 2, n, OrderOptions(vocabulary=SPLITS[split])))
        assert (most - before).tolist() == [2 * more] * p


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("p", [4, 8])
def test_bubbles_of_1f1b_stay(split: str, p: int) -> None:
    """Vocabulary passes cost their time on every stage; only interlaced barriers are exposed."""
    n, took = 64, {"F": 1.0, "B": 2.0}
    plain_s = timeline("1f1b", p, 1, n, split, took=took).makespan_s
    assert plain_s == n * 3 + (p - 1) * 3
    with_passes_s = timeline("1f1b", p, 1, n, split, took=took, vocabulary_s=0.05).makespan_s
    assert with_passes_s == pytest.approx(plain_s + 4 * n * 0.05, rel=0.02)
    with_barriers_s = timeline(
        "1f1b", p, 1, n, split, took=took, vocabulary_s=0.05, collective_s=0.05
    ).makespan_s
    hidden = with_barriers_s - with_passes_s < n * 0.05
    assert hidden is (split != "interlaced")
