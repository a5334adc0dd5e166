"""Records of simulated layers and iterations, which a profile predicts exactly."""

from typing import Any

from calibrate.records.schema import Header, IterationRecord, LayerRecord, Timing
from simtrain.iteration.memory.buffers import GLOBAL
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate, simulate_layer
from tests.helpers.toys import a100

Data = dict[str, Any]
HEADER = Header(
    device="NVIDIA A100-SXM4-80GB",
    backend="none",
    num_ranks=1,
    num_sms=108,
    memory_bytes=80 * 2**30,
    date="2026-01-01",
    command="python -m calibrate measure -o measured",
    software={"torch": "2.13"},
)
MODEL = {"hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024}


def layer(recompute: str, **split: Any) -> Data:
    return {
        "model": MODEL | {"num_layers": 1},
        "batch": {"micro": 4, "global": 4},
        "recompute": recompute,
        "parallelism": split,
    }


def iteration(recompute: str, **split: Any) -> Data:
    return {
        "model": MODEL | {"num_layers": 8},
        "batch": {"micro": 4, "global": 16},
        "recompute": recompute,
        "parallelism": split,
    }


def timing(seconds: float) -> Timing:
    return Timing(median_s=seconds, spread_s=0.0, num_samples=9)


def layer_record(data: Data, *, slower: float = 1.0, held_out: bool = True) -> LayerRecord:
    """Return the record of a simulated layer, with `slower` times its backward time."""
    forward, backward = simulate_layer(Scenario.model_validate(data), a100())
    return LayerRecord(
        scenario=data,
        held_out=held_out,
        forward=timing(forward.duration_s),
        backward=timing(backward.duration_s * slower),
    )


def iteration_record(data: Data, *, slower: float = 1.0, more_bytes: int = 0) -> IterationRecord:
    """Return the record of a simulated iteration, with `slower` times its time.

    The recorded peak excludes the global buffer and the allocator's reserve, which torch does not
    have.
    """
    result = simulate(Scenario.model_validate(data), a100())
    fullest = result.memory.fullest
    tensors = fullest.peak_bytes - fullest.allocator_bytes - fullest.buffers_bytes[GLOBAL]
    time = timing(result.iteration_time_s * slower)
    return IterationRecord(scenario=data, time=time, peak_bytes=tensors + more_bytes)
