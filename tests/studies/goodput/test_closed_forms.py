"""Closed forms against sums that are written out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.studies.goodput.closed_forms import (
    expected_ratio,
    nodes_up,
    share_without_spare,
    spares_for,
)
from simtrain.studies.goodput.fleet import Cause, Checkpointing, Fleet


@given(
    num_nodes=st.integers(1, 200),
    availability=st.floats(0.5, 0.999),
    confidence=st.floats(0.5, 0.99),
)
def test_nodes_that_are_up_follow_the_binomial(
    num_nodes: int, availability: float, confidence: float
) -> None:
    up = nodes_up(num_nodes, availability, confidence)

    def at_least(number: int) -> float:
        return math.fsum(
            math.comb(num_nodes, k) * availability**k * (1 - availability) ** (num_nodes - k)
            for k in range(number, num_nodes + 1)
        )

    assert at_least(up) >= confidence * (1 - 1e-9)
    assert up == num_nodes or at_least(up + 1) < confidence * (1 + 1e-9)


def test_130_of_144_cubes_are_up_with_95_percent() -> None:
    """Google's cluster of 144 cubes of 64 TPUs; an availability of 93.5 % gives this number."""
    assert nodes_up(144, 0.935, 0.95) == 130
    assert spares_for(130, 0.935) == 14


def test_spares_of_perfect_nodes_are_none() -> None:
    assert spares_for(2048, 1.0) == 0


def test_recovery_by_replica_by_hand() -> None:
    """Of 4 replicas, a failure stops all for 30 s, and one for 60 + 40 + 600 s."""
    cause = Cause("x", 1e-6, detection_s=60.0, diagnosis_s=40.0)
    checkpoint = Checkpointing(3600.0, 0.0)
    fleet = Fleet(4, 4, 0, (cause,), checkpoint, restart_s=600.0, reconfiguration_s=30.0)
    assert expected_ratio(fleet) == pytest.approx(1 - 1e-6 * (30 + 700 / 4))


def test_erlangs_loss_by_hand() -> None:
    """One spare and a load of 1/2: two places, whose states weigh 1, 1/2 and 1/8."""
    assert share_without_spare(1, 0.5, 1.0) == pytest.approx((1 / 8) / (1 + 1 / 2 + 1 / 8))


def test_the_ratio_of_kokolis_by_hand() -> None:
    """128 nodes, 6.5 failures per 1,000 node-days, 600 s to restart, 30 s of checkpoint an hour.

    The restart may fail too: its mean is (exp(600 rate) - 1) / rate.
    """
    rate = 128 * 6.5e-3 / 86_400
    fleet = Fleet(128, 1, 0, (Cause("x", rate),), Checkpointing(3600.0, 30.0), restart_s=600.0)
    lost = math.expm1(600 * rate) + 1800 * rate
    assert expected_ratio(fleet) == pytest.approx((1 - lost) / (1 + 30 / 3600))
    assert lost == pytest.approx(rate * (600 + 1800), rel=1e-3)
