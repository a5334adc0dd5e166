"""Whole trainings against closed forms: Daly, Erlang, Kokolis, and sums of their time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.studies.goodput import (
    HOURS,
    PLANNED,
    RESTART,
    WAITING,
    WORK,
    Cause,
    Checkpointing,
    Corruption,
    Fleet,
    SavedWork,
    Training,
    best_interval_s,
    draw_training,
    expected_ratio,
    nodes_up,
    recovery_s,
    spares_for,
)

SYNCHRONOUS = Checkpointing(interval_s=400.0, blocking_s=30.0)


def drawn(fleet: Fleet, draws: int, work_s: float, limit_s: float = math.inf) -> list[Training]:
    """Draw some trainings."""
    seeds = np.random.SeedSequence(7).spawn(draws)
    return [draw_training(fleet, seed, work_s, limit_s) for seed in seeds]


def a_fleet(*causes: Cause, **fields: object) -> Fleet:
    """Return a fleet of 100 nodes that fail for these causes."""
    defaults = {"num_nodes": 100, "spares": 10**6, "restart_s": 0.0}
    return Fleet(**defaults | {"checkpoint": SYNCHRONOUS} | fields, causes=causes)  # type: ignore[arg-type]


def assert_mean(values: list[float], mean: float, also: float = 0.0) -> None:
    """Compare the mean of some values with a closed form, within four standard errors."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    assert np.mean(values) == pytest.approx(mean, abs=4 * error + also + 1e-6)


# -------------------------------------------------------------------------- closed forms


@given(
    num_nodes=st.integers(1, 200), availability=st.floats(0.5, 1.0), confidence=st.floats(0.5, 0.99)
)
def test_nodes_that_are_up_and_spares_follow_the_binomial(
    num_nodes: int, availability: float, confidence: float
) -> None:
    def at_least(number: int, of: int) -> float:
        return math.fsum(
            math.comb(of, k) * availability**k * (1 - availability) ** (of - k)
            for k in range(number, of + 1)
        )

    up = nodes_up(num_nodes, availability, confidence)
    assert at_least(up, num_nodes) >= confidence * (1 - 1e-9)
    assert up == num_nodes or at_least(up + 1, num_nodes) < confidence * (1 + 1e-9)
    spares = spares_for(num_nodes, availability, confidence)
    assert spares == num_nodes or at_least(num_nodes, num_nodes + spares) >= confidence * 0.999999


def test_the_ratio_of_kokolis_by_hand() -> None:
    """128 nodes, 6.5 failures per 1,000 node-days, 600 s to restart, 30 s of checkpoint an hour.

    The restart may fail too: its mean is (exp(600 rate) - 1) / rate.
    """
    rate = 128 * 6.5e-3 / 86_400
    fleet = Fleet(128, 0, (Cause("x", rate),), Checkpointing(3600.0, 30.0), restart_s=600.0)
    lost = math.expm1(600 * rate) + 1800 * rate
    assert expected_ratio(fleet) == pytest.approx((1 - lost) / (1 + 30 / 3600))
    assert lost == pytest.approx(rate * (600 + 1800), rel=1e-3)


def test_youngs_interval_loses_least() -> None:
    rate, blocking_s = 1 / 5000, 20.0
    best_s = best_interval_s(blocking_s, rate)
    assert best_s == pytest.approx(math.sqrt(2 * 20 * 5000))

    def ratio(interval_s: float) -> float:
        return expected_ratio(a_fleet(Cause("x", rate), checkpoint=Checkpointing(interval_s, 20)))

    assert ratio(best_s) > max(ratio(best_s / 2), ratio(2 * best_s))


@given(rate=st.floats(1e-7, 1e-2), restart_s=st.floats(1.0, 1000.0), found_s=st.floats(0.0, 1e3))
def test_a_recovery_is_that_of_daly(rate: float, restart_s: float, found_s: float) -> None:
    """Daly 2006: (1 / rate + D)(exp(rate R) - 1), after the first D."""
    expected = found_s + (1 / rate + found_s) * math.expm1(rate * restart_s)
    assert recovery_s(found_s, restart_s, rate) == pytest.approx(expected, rel=1e-9)
    assert recovery_s(found_s, restart_s, 0.0) == found_s + restart_s


# -------------------------------------------------------------------------- checkpoints


class Stepwise:
    """Walks from one boundary to the next."""

    def __init__(self, each: Checkpointing) -> None:
        self.each, self.position, self.since, self.blocked = each, 0.0, 0.0, 0.0
        self.saved = [(0.0, 0.0)]

    def advance(self, now: float, elapsed: float) -> float:
        """Work until the time is over; return how long checkpoints stopped it."""
        stopped = 0.0
        while elapsed > 0:
            if self.blocked > 0:
                step = min(self.blocked, elapsed)
                self.blocked -= step
                stopped += step
            else:
                step = min(self.each.interval_s - self.since, elapsed)
                reaches = step < elapsed or self.since + step >= self.each.interval_s
                self.since += step
                self.position += step
                if reaches and self.since >= self.each.interval_s * (1 - 1e-12):
                    self.since, self.blocked = 0.0, self.each.blocking_s
                    self.saved.append((now + step + self.each.loadable_s, self.position))
            now, elapsed = now + step, elapsed - step
        return stopped


@given(
    interval=st.floats(10, 100),
    blocking=st.floats(0, 5),
    write=st.floats(0, 10),
    pieces=st.lists(st.floats(0.1, 400), min_size=1, max_size=6),
)
def test_pieces_of_any_length_are_as_one_step_after_another(
    interval: float, blocking: float, write: float, pieces: list[float]
) -> None:
    each = Checkpointing(interval, blocking, write)
    saved_work, stepwise, now = SavedWork(each), Stepwise(each), 0.0
    for elapsed in pieces:
        assert saved_work.advance(now, elapsed) == pytest.approx(
            stepwise.advance(now, elapsed), abs=1e-6
        )
        now += elapsed
        assert saved_work.position_s == pytest.approx(stepwise.position, abs=1e-6)
        saved = max(position for loadable, position in stepwise.saved if loadable <= now + 1e-9)
        # A checkpoint may become loadable within rounding of now.
        others = [position for loadable, position in stepwise.saved if abs(loadable - now) < 1e-6]
        loaded = saved_work.saved_at(now)
        assert any(loaded == pytest.approx(each, abs=1e-6) for each in (saved, *others))


def test_a_checkpoint_that_is_not_written_yet_cannot_be_loaded() -> None:
    """Checkpoints begin at 10, 20 and 30 s, and are written 6 s later."""
    saved_work = SavedWork(Checkpointing(10.0, 0.0, 6.0))
    saved_work.advance(0.0, 35.0)
    assert (saved_work.saved_at(35.0), saved_work.saved_at(36.0)) == (20.0, 30.0)
    assert saved_work.go_back(20.0) == 15.0


@given(
    interval=st.floats(10, 100),
    blocking=st.floats(0, 5),
    first=st.floats(0, 300),
    rest=st.floats(1, 1000),
)
def test_the_time_to_a_position_reaches_it(
    interval: float, blocking: float, first: float, rest: float
) -> None:
    saved_work = SavedWork(Checkpointing(interval, blocking))
    saved_work.advance(0.0, first)
    target = saved_work.position_s + rest
    saved_work.advance(first, saved_work.time_to(target))
    assert saved_work.position_s == pytest.approx(target, abs=1e-6 + interval * 1e-9)


# -------------------------------------------------------------------------- drawn trainings


def test_without_failures_only_checkpoints_take_time() -> None:
    (training,) = drawn(a_fleet(), 1, work_s=400.0 * 1000)
    # The last interval ends the training, and has no checkpoint.
    assert training.time_s == pytest.approx(400.0 * 1000 + 30.0 * 999)
    assert training.seconds[WORK] == pytest.approx(400.0 * 1000)


@pytest.mark.parametrize("failures_per_s", [1 / 20_000, 1 / 3000, 1 / 900])
def test_the_mean_is_that_of_daly(failures_per_s: float) -> None:
    """Daly 2006, Equation 20, for exponential failures: an interval t with its checkpoint takes
    (1 / rate + R)(exp(rate t) - 1), if nothing fails in the time R after a failure.
    """
    cause = Cause("x", failures_per_s, detection_s=60.0, diagnosis_s=40.0)
    fleet = a_fleet(cause, restart_s=50.0)
    down_s = recovery_s(100.0, 50.0, failures_per_s)
    exact = 400 / ((1 / failures_per_s + down_s) * math.expm1(430 * failures_per_s))
    # The first start and the missing last checkpoint are 80 of at least 215,000 s.
    ratios = [each.effective_ratio for each in drawn(fleet, 40, work_s=400.0 * 500)]
    assert_mean(ratios, exact, also=4e-4)
    if failures_per_s < 1 / 10_000:
        assert expected_ratio(fleet) == pytest.approx(exact, abs=0.002)


@pytest.mark.parametrize(("spares", "repair_s"), [(0, 2000.0), (2, 8000.0)])
def test_waiting_for_nodes_is_erlangs_loss(spares: int, repair_s: float) -> None:
    """A training that waits does not fail: a loss system with one place more than spares.

    Of k = spares + 1 places, all are taken for a share of (a^k / k!) / sum of a^i / i!.
    """
    cause, each = Cause("x", 1 / 5000, repair_s=repair_s), Checkpointing(1.0, 0.0)
    fleet = a_fleet(cause, spares=spares, checkpoint=each)
    trainings = drawn(fleet, 20, math.inf, limit_s=2e6)
    shares = [each.seconds[WAITING] / each.time_s for each in trainings]
    load, places = repair_s / 5000, spares + 1
    weights = [load**taken / math.factorial(taken) for taken in range(places + 1)]
    assert_mean(shares, weights[-1] / math.fsum(weights))


def test_a_planned_stop_loses_no_work() -> None:
    fleet = a_fleet(Cause(PLANNED, 1 / 2000, is_planned=True), restart_s=10.0)
    (training,) = drawn(fleet, 1, work_s=1e6)
    assert training.seconds["lost work"] == 0
    assert training.planned > 100
    assert training.seconds[RESTART] == pytest.approx(10.0 * (training.planned + 1))


@given(
    rates=st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=3),
    times=st.lists(st.floats(0.0, 2000.0), min_size=4, max_size=4),
    interval_s=st.floats(50.0, 5000.0),
    blocking_s=st.floats(0.0, 40.0),
    spares=st.integers(0, 3),
    is_corrupt=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_parts_of_a_training_add_up_to_its_time(
    rates: list[float],
    times: list[float],
    interval_s: float,
    blocking_s: float,
    spares: int,
    is_corrupt: bool,
    seed: int,
) -> None:
    detection_s, diagnosis_s, restart_s, write_s = times
    causes = [
        Cause(str(n), rate, detection_s, diagnosis_s, 3000.0 * n) for n, rate in enumerate(rates)
    ]
    fleet = a_fleet(
        *causes,
        Cause(PLANNED, 1e-5, is_planned=True),
        spares=spares,
        restart_s=restart_s,
        checkpoint=Checkpointing(interval_s, blocking_s, min(write_s, interval_s)),
        corruption=Corruption(2e-5, 3000.0, 3000.0) if is_corrupt else None,
    )
    seeds = np.random.SeedSequence(seed), np.random.SeedSequence(seed)
    training, again = (draw_training(fleet, each, math.inf, 2e5) for each in seeds)
    assert training == again
    assert set(training.seconds) == set(HOURS)
    assert all(seconds >= -1e-6 for seconds in training.seconds.values())
    assert training.time_s == pytest.approx(2e5, rel=1e-9)
