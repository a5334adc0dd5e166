"""Restarts that fail again, and a storage that other jobs share, against closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simtrain
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.studies.goodput.closed_forms import recovery_s
from simtrain.studies.goodput.entries import TrainingFacts, fleet_of
from simtrain.studies.goodput.fleet import Cause, Checkpointing, Fleet
from simtrain.studies.goodput.progress import Progress
from simtrain.studies.goodput.storage import SharedStorage
from simtrain.studies.goodput.training import RESTART, draw_training

EACH = Checkpointing(interval_s=1e12, blocking_s=0.0)


def drawn_recoveries_s(fleet: Fleet, draws: int) -> np.ndarray:
    """Draw how long first starts take, which no failure comes before."""
    seeds = np.random.SeedSequence(3).spawn(draws)
    trainings = [draw_training(fleet, seed, 1e-9, math.inf) for seed in seeds]
    return np.array([training.time_s for training in trainings])


def assert_mean(values: np.ndarray, mean: float) -> None:
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    assert values.mean() == pytest.approx(mean, abs=4 * error + 1e-6)


def test_the_number_of_starts_is_geometric() -> None:
    """Without other failures a start that fails with p takes R / (1 - p) in the mean."""
    fleet = Fleet(8, 1, 10**6, (), EACH, restart_s=100.0, restart_fails=0.3)
    times_s = drawn_recoveries_s(fleet, 3000)
    assert_mean(times_s, 100 / 0.7)
    for starts in (1, 2, 3):
        share = float((np.rint(times_s / 100) == starts).mean())
        assert share == pytest.approx(0.7 * 0.3 ** (starts - 1), abs=0.03)
    assert recovery_s(0.0, 100.0, 0.0, 0.3) == pytest.approx(100 / 0.7)


@pytest.mark.parametrize("fails", [0.0, 0.2])
@pytest.mark.parametrize("between_s", [300.0, 3000.0])
def test_failures_during_a_start_are_those_of_daly(between_s: float, fails: float) -> None:
    cause = Cause("x", 1 / between_s, detection_s=30.0, diagnosis_s=90.0)
    fleet = Fleet(8, 1, 10**6, (cause,), EACH, restart_s=200.0, restart_fails=fails)
    closed_s = recovery_s(120.0, 200.0, 1 / between_s, fails) - 120
    assert_mean(drawn_recoveries_s(fleet, 3000), closed_s)


@given(rate=st.floats(1e-7, 1e-2), restart_s=st.floats(1.0, 1000.0), found_s=st.floats(0.0, 1e3))
def test_the_closed_form_without_own_failures_is_dalys(
    rate: float, restart_s: float, found_s: float
) -> None:
    """Daly 2006: (1 / rate + D)(exp(rate R) - 1), after the first D."""
    expected = found_s + (1 / rate + found_s) * math.expm1(rate * restart_s)
    assert recovery_s(found_s, restart_s, rate) == pytest.approx(expected, rel=1e-9)


def test_a_start_that_fails_is_an_interruption() -> None:
    fleet = Fleet(8, 1, 0, (), EACH, restart_s=10.0, restart_fails=0.9)
    training = draw_training(fleet, np.random.SeedSequence(1), 50.0, math.inf)
    starts = training.interruptions["restart"] + 1
    assert starts > 1 and training.seconds[RESTART] == pytest.approx(10.0 * starts)


@pytest.mark.parametrize(("load", "alone_s"), [(0.3, 50.0), (0.7, 400.0), (0.7, 20.0)])
def test_a_shared_transfer_takes_one_over_one_minus_load(load: float, alone_s: float) -> None:
    """Processor sharing: the mean is linear in the size, whatever the sizes of the others."""
    storage, rng = SharedStorage(load, others_s=100.0), np.random.default_rng(5)
    assert_mean(np.array([storage.draw_s(alone_s, rng) for _ in range(3000)]), alone_s / (1 - load))


@given(load=st.floats(0.01, 0.9), alone_s=st.floats(1.0, 1e3), seed=st.integers(0, 1000))
def test_a_shared_transfer_is_never_faster_than_alone(
    load: float, alone_s: float, seed: int
) -> None:
    drawn_s = SharedStorage(load, 60.0).draw_s(alone_s, np.random.default_rng(seed))
    assert drawn_s >= alone_s * (1 - 1e-12)


def test_a_slow_write_leaves_the_checkpoint_before_it() -> None:
    """Writes of 25 and 5 s, begun after 10 and 20 s of work: only the second is there after 30."""
    writes = iter((25.0, 5.0))
    progress = Progress(Checkpointing(10.0, 0.0, 10.0), lambda: next(writes))
    progress.advance(0.0, 29.0, 1.0)
    assert progress.saved_at(24.0) == 0.0
    assert progress.saved_at(29.0) == 20.0


def test_others_on_the_storage_slow_checkpoints_and_restarts_down() -> None:
    reliability = load_profile("h100_sxm").reliability
    assert reliability is not None
    facts = TrainingFacts(
        num_gpus=16_384,
        gpus_per_node=8,
        num_replicas=128,
        num_parameters=405 * 10**9,
        iteration_time_s=10.0,
    )
    load = reliability.checkpoints.others_load
    assert load is not None and load.value == 0
    busy = load.model_copy(update={"value": 0.5})
    checkpoints = reliability.checkpoints.model_copy(update={"others_load": busy})
    shared = reliability.model_copy(update={"checkpoints": checkpoints})
    alone, beside = fleet_of(facts, reliability), fleet_of(facts, shared)
    assert beside.checkpoint.write_s == pytest.approx(2 * alone.checkpoint.write_s)
    assert beside.restart_s == pytest.approx(alone.restart_s + alone.load_s)
    in_memory = fleet_of(replace(facts, checkpoint="memory", network_bytes_per_s=1e12), shared)
    assert in_memory.storage is None


@pytest.mark.parametrize("entry", ["restart.failure_probability", "checkpoints.others_load"])
@pytest.mark.parametrize("value", [1, -0.1])
def test_a_share_outside_its_range_is_refused(entry: str, value: float) -> None:
    base = simtrain.load_scenario("llama3_70b")
    with pytest.raises(InputError):
        simtrain.goodput(base.replace({f"hardware.reliability.{entry}": value}), days=1, draws=1)
