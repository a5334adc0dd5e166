"""Published energies beside those of simulated iterations, for docs/model.md."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import simtrain
from docs.update.request import Request, signed_percent, table
from simtrain.studies.cost import TrainingCost

_LLAMA2_70B_LORA: dict[str, Any] = {
    "model.lora.rank": 16,
    "model.lora.modules": ["linear_qkv", "linear_proj"],
    "model.seq_length": 8192,
    "parallelism.tensor": 4,
    "parallelism.pipeline": 1,
    "parallelism.interleave": 1,
    "parallelism.sequence_parallel": True,
    "batch.micro": 1,
    "batch.global": 8,
    "memory.zero_stage": 1,
    "precision.compute": "fp8",
    "software.stack": "mlperf_nvidia",
    "cluster": "h100_sxm",
    "hardware.running_costs.fan_power": "0 W",
}
"""MLPerf Training v4.0's fine-tuning benchmark; its layouts are assumed. The nodes are immersed."""
_OLMO2_7B: dict[str, Any] = {
    "model.vocab_size": 100352,
    "model.qk_norm": True,
    "parallelism.tensor": 1,
    "parallelism.sequence_parallel": False,
    "batch.global": 1024,
    "memory.zero_stage": 3,
    "software.stack": "torchtitan_compiled",
    "cluster": "h100_sxm",
}
"""Walsh et al. 2025 (arXiv 2501.00656), Table 1; framework, layout and GPUs are assumed."""


@dataclass(frozen=True)
class Case:
    """A published power or energy, and ours.

    Args:
        training: in words.
        unit: of both.
        published: measured.
        simulated: ours.
    """

    training: str
    unit: str
    published: float
    simulated: float


def _cost(base: str, tokens: str, *changes: dict[str, Any]) -> TrainingCost:
    values = {name: value for each in changes for name, value in each.items()}
    return simtrain.cost(simtrain.load_scenario(base).replace(values), tokens, goodput=1.0)


def _node_kw(cost: TrainingCost) -> float:
    assert cost.energy is not None, "H100's profile has all powers"
    return cost.energy.mean / (cost.time_s / 3600) / (cost.num_gpus / 8)


def _mwh(cost: TrainingCost) -> float:
    assert cost.energy is not None, "H100's profile has all powers"
    return cost.energy.mean / 1000


def cases() -> Iterator[Case]:
    """Yield the published figures."""
    one = _cost("llama2_70b", "1B", _LLAMA2_70B_LORA, {"parallelism.data": 2})
    eight_nodes = {"parallelism.data": 8, "parallelism.context": 2}
    eight = _cost("llama2_70b", "1B", _LLAMA2_70B_LORA, eight_nodes)
    name = "Llama 2 70B with LoRA, MLPerf Training v4.0"
    yield Case(f"{name}, a node alone", "kW", 6.741, _node_kw(one))
    yield Case(f"{name}, each of 8 nodes, with switches", "kW", 5.847 + 2.013, _node_kw(eight))
    yield Case(f"{name}, each of 8 nodes, without", "kW", 5.847, _node_kw(eight) - 2.013)
    for num_gpus, micro in ((128, 4), (512, 2)):
        layout = {"parallelism.data": num_gpus, "batch.micro": micro}
        olmo = _cost("llama2_7b", "4.05T", _OLMO2_7B, layout)
        yield Case(f"OLMo 2 7B, 4.05T tokens, if on {num_gpus} GPUs", "MWh", 131, _mwh(olmo))


def energy_cases(request: Request) -> str:
    """Return the table of published energies."""
    rows = [
        [
            case.training,
            f"{case.published:.3g} {case.unit}",
            f"{case.simulated:.3g} {case.unit}",
            signed_percent(case.simulated / case.published - 1, 0),
        ]
        for case in cases()
    ]
    return table(["training", "measured", "simulated", "error"], rows)
