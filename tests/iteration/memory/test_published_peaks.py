"""Published peaks lie in the intervals of predicted ones."""

import math
from statistics import mean

import pytest

from simtrain.iteration.memory.fit import PEAK_SPREAD
from simtrain.studies.simulation import simulate_memory
from simtrain.units import GIB
from tests.helpers.toys import scenario_with

# Qi et al. 2023, "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), rows with 1F1B: number of
# rows, layers, width, heads, stages, microbatch, microbatches, peak in GB as printed.
PEAKS = (
    *((1, 22, 2304, 24, 8, 6, 32, 30), (1, 30, 4096, 32, 8, 3, 32, 39)),  # Table 4
    (2, 46, 5120, 40, 16, 1, 48, 32),
    *((2, 22, 2304, 24, 8, 12, 32, 57), (1, 30, 4096, 32, 8, 6, 24, 66)),  # Table 8
    *((2, 46, 5120, 40, 16, 2, 64, 50), (2, 62, 6144, 48, 32, 2, 96, 72)),
    *((1, 30, 4096, 32, 8, 3, 2, 21), (1, 30, 4096, 32, 8, 3, 4, 28)),  # Table 9
    *((1, 46, 5120, 40, 16, 1, 4, 19), (1, 46, 5120, 40, 16, 1, 16, 32)),
)


def error(
    layers: int, width: int, heads: int, stages: int, micro: int, microbatches: int, peak: int
) -> float:
    """Return predicted / published - 1 of the tensors at the peak."""
    ends = (layers + 2) // stages - 1
    # A 1F1B pipeline holds at most one microbatch for each stage: more do not change its peak.
    num_held = min(microbatches, stages + 1)
    scenario = scenario_with(
        {
            "num_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "seq_length": 1024,
            "vocab_size": 51200,
        },
        batch={"micro": micro, "global": num_held * micro},
        parallelism={
            "pipeline": stages,
            "first_stage_layers": ends,
            "last_stage_layers": ends,
        },
    )
    fullest = simulate_memory(scenario).fullest
    return (fullest.peak_bytes - fullest.allocator_bytes) / GIB / peak - 1


def test_published_peaks_lie_in_their_intervals() -> None:
    """12 of 15 do: the spread follows from other runs."""
    errors = [error(*row) for number, *row in PEAKS for _ in range(number)]
    assert len(errors) == 15
    assert mean(map(abs, errors)) == pytest.approx(0.037, abs=0.0005)
    assert max(errors, key=abs) == pytest.approx(-0.080, abs=0.0005)
    assert sum(abs(math.log1p(off)) <= PEAK_SPREAD.width for off in errors) == 12
