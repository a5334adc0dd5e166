"""Whole trainings against closed forms: Daly, Erlang, and sums of their time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.studies.goodput.closed_forms import (
    best_interval_s,
    exact_ratio,
    expected_ratio,
    recovery_s,
    share_without_spare,
)
from simtrain.studies.goodput.fleet import (
    PLANNED,
    Cause,
    Checkpointing,
    Corruption,
    Fleet,
    Slowness,
)
from simtrain.studies.goodput.training import HOURS, WAITING, WORK, Training, draw_training

SYNCHRONOUS = Checkpointing(interval_s=400.0, blocking_s=30.0)


def drawn(fleet: Fleet, draws: int, work_s: float, limit_s: float = math.inf) -> list[Training]:
    """Draw some trainings."""
    seeds = np.random.SeedSequence(7).spawn(draws)
    return [draw_training(fleet, seed, work_s, limit_s) for seed in seeds]


def fleet_of(*causes: Cause, **fields: object) -> Fleet:
    """Return a fleet of 100 nodes that fail for these causes."""
    defaults = {"num_nodes": 100, "num_replicas": 4, "spares": 10**6, "restart_s": 0.0}
    return Fleet(**defaults | {"checkpoint": SYNCHRONOUS} | fields, causes=causes)  # type: ignore[arg-type]


def test_without_failures_only_checkpoints_take_time() -> None:
    (training,) = drawn(fleet_of(), 1, work_s=400.0 * 1000)
    # The last interval ends the training, and has no checkpoint.
    assert training.time_s == pytest.approx(400.0 * 1000 + 30.0 * 999)
    assert training.seconds[WORK] == pytest.approx(400.0 * 1000)


@pytest.mark.parametrize("failures_per_s", [1 / 20_000, 1 / 3000, 1 / 900])
def test_the_mean_is_that_of_daly(failures_per_s: float) -> None:
    """Exact for exponential failures, whole intervals and a constant time of recovery."""
    cause = Cause("x", failures_per_s, detection_s=60.0, diagnosis_s=40.0)
    fleet = fleet_of(cause, restart_s=50.0)
    ratios = [each.effective_ratio for each in drawn(fleet, 40, work_s=400.0 * 500)]
    down_s = recovery_s(100.0, 50.0, failures_per_s)
    exact = exact_ratio(SYNCHRONOUS, failures_per_s, down_s)
    error = float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
    # The first start and the missing last checkpoint are 80 of at least 215,000 s.
    assert np.mean(ratios) == pytest.approx(exact, abs=4 * error + 4e-4)
    if failures_per_s < 1 / 10_000:
        assert expected_ratio(fleet) == pytest.approx(exact, abs=0.002)


def test_youngs_interval_loses_least() -> None:
    rate, blocking_s = 1 / 5000, 20.0
    best_s = best_interval_s(blocking_s, rate)
    assert best_s == pytest.approx(math.sqrt(2 * 20 * 5000))

    def ratio(interval_s: float) -> float:
        return expected_ratio(fleet_of(Cause("x", rate), checkpoint=Checkpointing(interval_s, 20)))

    assert ratio(best_s) > max(ratio(best_s / 2), ratio(2 * best_s))


@pytest.mark.parametrize(("spares", "repair_s"), [(0, 2000.0), (2, 8000.0)])
def test_waiting_for_nodes_is_erlangs_loss(spares: int, repair_s: float) -> None:
    """A training that waits does not fail: a loss system with one place more than spares."""
    rate = 1 / 5000
    fleet = fleet_of(Cause("x", rate, repair_s=repair_s), spares=spares)
    fleet = Fleet(
        **{**{f: getattr(fleet, f) for f in fleet.__slots__}, "checkpoint": Checkpointing(1.0, 0.0)}
    )
    shares = [
        each.seconds[WAITING] / each.time_s for each in drawn(fleet, 20, math.inf, limit_s=5e6)
    ]
    error = float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
    assert np.mean(shares) == pytest.approx(
        share_without_spare(spares, rate, repair_s), abs=4 * error
    )


def test_a_planned_stop_loses_no_work() -> None:
    fleet = fleet_of(Cause(PLANNED, 1 / 2000, is_planned=True), restart_s=10.0)
    (training,) = drawn(fleet, 1, work_s=1e6)
    assert training.seconds["lost work"] == 0
    assert training.planned > 100
    assert training.seconds["restart"] == pytest.approx(10.0 * (training.planned + 1))


def test_replicas_that_go_on_lose_less_than_all_that_stop() -> None:
    cause = Cause("x", 1 / 1000, detection_s=60.0, diagnosis_s=540.0)
    by_replica = fleet_of(cause, num_replicas=64, reconfiguration_s=180.0, restart_s=60.0)
    all_stop = fleet_of(cause, num_replicas=64, restart_s=60.0)
    (one,), (other,) = drawn(by_replica, 1, 1e6), drawn(all_stop, 1, 1e6)
    assert one.effective_ratio > other.effective_ratio
    # Each failure stops all for 180 s, and one of 64 replicas for 660 s.
    expected = 1 / (1 + (180 + 660 / 64) / 1000 + 30 / 400)
    assert one.effective_ratio == pytest.approx(expected, abs=0.01)


@given(
    rates=st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=3),
    times=st.lists(st.floats(0.0, 2000.0), min_size=4, max_size=4),
    interval_s=st.floats(50.0, 5000.0),
    blocking_s=st.floats(0.0, 40.0),
    spares=st.integers(0, 3),
    num_replicas=st.integers(1, 8),
    by_replica=st.booleans(),
    shrinks=st.booleans(),
    num_nodes=st.sampled_from([2, 8, 100]),
    is_slow=st.booleans(),
    is_corrupt=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_parts_of_a_training_add_up_to_its_time(
    rates: list[float],
    times: list[float],
    interval_s: float,
    blocking_s: float,
    spares: int,
    num_replicas: int,
    by_replica: bool,
    shrinks: bool,
    num_nodes: int,
    is_slow: bool,
    is_corrupt: bool,
    seed: int,
) -> None:
    detection_s, diagnosis_s, restart_s, write_s = times
    causes = [
        Cause(str(n), rate, detection_s, diagnosis_s, 3000.0 * n) for n, rate in enumerate(rates)
    ]
    fleet = fleet_of(
        *causes,
        Cause(PLANNED, 1e-5, is_planned=True),
        spares=spares,
        num_replicas=num_replicas,
        num_nodes=num_nodes,
        shrinks=shrinks,
        restart_s=restart_s,
        checkpoint=Checkpointing(interval_s, blocking_s, min(write_s, interval_s)),
        reconfiguration_s=30.0 if by_replica else None,
        slowness=Slowness(2e-5, 1.5, 3000.0, 3000.0) if is_slow else None,
        corruption=Corruption(2e-5, 3000.0, 3000.0) if is_corrupt else None,
    )
    limit_s = 2e5
    seeds = np.random.SeedSequence(seed), np.random.SeedSequence(seed)
    training, again = (draw_training(fleet, each, math.inf, limit_s, spans=True) for each in seeds)
    assert training == again
    assert set(training.seconds) == set(HOURS)
    assert all(seconds >= -1e-6 for seconds in training.seconds.values())
    assert training.time_s == pytest.approx(training.spans[-1].end_s, rel=1e-9)
    ends = [0.0, *(span.end_s for span in training.spans)]
    assert all(
        span.start_s == pytest.approx(end) for span, end in zip(training.spans, ends, strict=False)
    )


def test_recovery_by_replica_is_that_of_the_closed_form() -> None:
    """Failures are rare: never are two replicas away at once."""
    cause = Cause("x", 1 / 200_000, detection_s=60.0, diagnosis_s=40.0)
    each = Checkpointing(interval_s=4000.0, blocking_s=0.0)
    fleet = fleet_of(cause, checkpoint=each, restart_s=600.0, reconfiguration_s=30.0)
    ratios = [each.effective_ratio for each in drawn(fleet, 40, work_s=2e7)]
    error = float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
    assert np.mean(ratios) == pytest.approx(expected_ratio(fleet), abs=4 * error + 1e-5)


@pytest.mark.parametrize("load", [0.1, 0.5])
def test_a_training_that_shrinks_is_the_chain_of_its_nodes(load: float) -> None:
    """Two nodes with a replica each, no spare, exponential failures and repairs, nothing else.

    With a load of rate times repair, the states of 0, 1 and 2 nodes away weigh 1, load and
    load^2/2: nothing fails while both are away. With one away half of the work is done.
    """
    repair_s = 1000.0
    cause = Cause("x", load / repair_s, repair_s=repair_s)
    each = Checkpointing(interval_s=1.0, blocking_s=0.0)
    fleet = fleet_of(cause, num_nodes=2, num_replicas=2, spares=0, shrinks=True, checkpoint=each)
    ratios = [each.effective_ratio for each in drawn(fleet, 30, math.inf, limit_s=3e5)]
    error = float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
    chain = (1 + load / 2) / (1 + load + load**2 / 2)
    # Half a second of work is lost with each failure.
    assert np.mean(ratios) == pytest.approx(chain, abs=4 * error + load / repair_s)


def test_nodes_of_a_dropped_replica_are_spares() -> None:
    """8 nodes, 2 replicas: one failure drops a replica, three take its other nodes, one waits."""
    cause = Cause("x", 1 / 1000, repair_s=1e12)
    fleet = fleet_of(cause, num_nodes=8, num_replicas=2, spares=0, shrinks=True)
    (training,) = drawn(fleet, 1, math.inf, limit_s=1e6)
    assert training.num_interruptions == 5
    assert training.seconds[WAITING] > 0.9e6
