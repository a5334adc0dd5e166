"""The goodput that a cost or a plan takes when it is asked to find it."""

from __future__ import annotations

import math

import numpy as np

from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.studies.goodput.entries import TrainingFacts, fleet_of
from simtrain.studies.goodput.length import check_length
from simtrain.studies.goodput.training import draw_training

FALLBACK = "h100_sxm"
"""Whose failures stand in for those of a profile without any."""
_DRAWS = 20


def goodput_of(
    scenario: Scenario, profile: HardwareProfile, iteration_time_s: float, num_iterations: int
) -> float:
    """Return the mean effective training time ratio of a training, drawn 20 times with seed 0.

    Args:
        scenario: the iteration.
        profile: of its cluster; without failures, those of h100_sxm stand in.
        iteration_time_s: time of an iteration.
        num_iterations: iterations of the training.
    """
    gpus_per_node = profile.cluster.gpus_per_node.value
    reliability = profile.reliability or load_profile(FALLBACK).reliability
    assert reliability is not None, "the fallback has failures"
    facts = TrainingFacts(
        num_gpus=scenario.num_gpus,
        gpus_per_node=gpus_per_node,
        num_replicas=scenario.parallelism.data,
        num_parameters=Plan.of(scenario, gpus_per_node).num_parameters,
        iteration_time_s=iteration_time_s,
    )
    fleet, work_s = fleet_of(facts, reliability), num_iterations * iteration_time_s
    check_length(fleet, work_s, math.inf)
    ratios = [
        draw_training(fleet, seed, work_s, math.inf).effective_ratio
        for seed in np.random.SeedSequence(0).spawn(_DRAWS)
    ]
    return math.fsum(ratios) / len(ratios)
