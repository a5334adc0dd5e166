"""Small scenarios whose iterations vary, with closed forms."""

import functools
import math
from typing import Any

import numpy as np

from simtrain import Scenario
from simtrain.studies.variation import DrawnTimes, draw

STILL: dict[str, Any] = {
    "variation.kernels": 0,
    "variation.collectives": 0,
    "variation.gpu_spread": 0,
    "variation.pauses.per_gpu_hour": 0,
}
"""Nothing varies."""


def small(changes: dict[str, Any] | None = None) -> Scenario:
    """Return a model of one stage whose GPU never waits for its host."""
    scenario = Scenario.model_validate(
        {
            "model": {
                "num_layers": 2,
                "hidden_size": 512,
                "num_attention_heads": 8,
                "seq_length": 512,
                "vocab_size": 1024,
            },
            "batch": {"micro": 1, "global": 1},
            "attention_backend": "fused",
            "cluster": "h100_sxm",
            "hardware": {"host": {"issue": "0 s"}},
        }
    )
    return scenario.replace(changes or {})


def replicas(number: int, changes: dict[str, Any] | None = None) -> Scenario:
    """Return replicas with one microbatch each."""
    return small({"parallelism.data": number, "batch.global": number} | (changes or {}))


def drawn(scenario: Scenario, changes: dict[str, Any], **numbers: int) -> DrawnTimes:
    """Draw a scenario in which only `changes` vary."""
    return draw(scenario.replace(STILL | changes), **numbers)


@functools.cache
def mean_of_largest(number: int) -> float:
    """Return the mean of the largest of some standard normal numbers, n ∫ x φ(x) Φ(x)^(n-1) dx."""
    x = np.linspace(-10, 10, 20_001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) for each in x])
    return float(np.trapezoid(number * x * density * below ** (number - 1), x))
