"""The goodput that a cost or a plan takes when it is asked to find it."""

from __future__ import annotations

import math

import numpy as np

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.studies.goodput.entries import TrainingFacts, failures_of, fleet_of
from simtrain.studies.goodput.length import check_length
from simtrain.studies.goodput.training import draw_training

_DRAWS = 20


def goodput_of(
    scenario: Scenario, profile: HardwareProfile, iteration_time_s: float, num_iterations: int
) -> tuple[float, str]:
    """Draw a training 20 times with seed 0.

    Returns the mean effective training time ratio, and the name of the profile whose failures
    were drawn.

    Args:
        scenario: the iteration.
        profile: of its cluster; without failures, those of h100_sxm stand in.
        iteration_time_s: time of an iteration.
        num_iterations: iterations of the training.
    """
    gpus_per_node = profile.cluster.gpus_per_node.value
    name, reliability = failures_of(profile)
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
    return math.fsum(ratios) / len(ratios), name
