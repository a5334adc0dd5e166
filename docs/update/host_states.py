"""ZeRO-Offload's and ZeRO-Infinity's published runs, simulated, for docs/related_work.md."""

import functools
from typing import Any

from docs.update.published.zero_offload import (
    ACHIEVABLE_FLOPS,
    DELAYED_MODELS,
    DELAYED_SPEEDUPS,
    RUNS,
    Run,
)
from docs.update.request import Request, signed_percent, table
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate

_OFFLOAD = {"offload_optimizer": True, "offload_gradients": True}
SCALED: dict[str, Any] = {}
"""The profile as it is: products scaled by one of a V100."""
ACHIEVABLE: dict[str, Any] = {"gemm": {"sustained_flops": ACHIEVABLE_FLOPS}}
"""Products at the rate that the paper takes a V100 to achieve."""


def _scenario(shape: tuple[int, int, int], **sections: Any) -> Scenario:
    layers, hidden, heads = shape
    model = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return Scenario.model_validate(
        {
            "model": model | {"seq_length": 1024},
            "precision": {"compute": "fp16", "gradients": "fp16"},
            "recompute": "full",
            "software": "deepspeed_2020",
            "cluster": "v100_dgx2",
            **sections,
        }
    )


def scenario_of(run: Run) -> Scenario:
    """Return the scenario of a run."""
    memory: dict[str, Any] = dict(_OFFLOAD) if run.offloads else {}
    if run.data > 1:
        memory |= {"zero_stage": 2}
    if run.parameters_on_host:
        memory |= {"zero_stage": 3, "offload_parameters": True}
    return _scenario(
        (run.layers, run.hidden, run.heads),
        parallelism={"tensor": run.tensor, "data": run.data},
        batch={"micro": run.micro, "global": run.micro * run.microbatches * run.data},
        memory=memory,
        overlap={"data_parallel": run.data > 1},
        software=run.software,
        offload="layer" if run.parameters_on_host else "none",
    )


@functools.cache
def tflops_of(run: Run, *, achievable: bool = False) -> float:
    """Return the TFLOP/s of each GPU, with those of the recompute: 8 per parameter and token.

    ZeRO-Infinity counts so (equation 7), and so does the code of its runs
    (microsoft/DeepSpeedExamples@bdf8e59a, Megatron-LM-v1.1.5-ZeRO3/megatron/utils.py,
    flops_calculator). ZeRO-Offload does not say how it counts.
    """
    hardware = ACHIEVABLE if achievable else SCALED
    scenario = scenario_of(run).replace({"hardware": hardware})
    result = simulate(scenario)
    tokens = scenario.batch.global_ * scenario.model.seq_length
    flops = 8 * result.plan.num_parameters * tokens
    return flops / result.iteration_time_s / scenario.num_gpus / 1e12


@functools.cache
def delayed_speedup(name: str) -> float:
    """Return by how many times a delayed update is faster, on one GPU."""
    now, later = (
        simulate(
            _scenario(
                DELAYED_MODELS[name],
                batch={"micro": 8, "global": 8},
                memory=_OFFLOAD | {"delayed_update": delayed},
            )
        ).iteration_time_s
        for delayed in (False, True)
    )
    return now / later


def zero_offload(request: Request) -> str:
    """Return the table of the published runs."""
    rows = []
    for run in RUNS:
        least, published = run.tflops < 0, abs(run.tflops)
        ours = [tflops_of(run, achievable=achievable) for achievable in (False, True)]
        cells = [
            f"{each:.1f}" + ("" if least else f" ({signed_percent(each / published - 1, 0)})")
            for each in ours
        ]
        rows.append([run.name, f"{'more than ' * least}{published:.0f}", *cells, run.assumed])
    for name in DELAYED_MODELS:
        low, high = DELAYED_SPEEDUPS
        rows.append(
            [
                f"{name}, speed-up by a delayed update",
                f"{low} to {high} times",
                f"{delayed_speedup(name):.2f} times",
                "",
                "shape",
            ]
        )
    head = ["run", "published", "simulated", "with products of 70 TFLOP/s", "assumed"]
    return table(head, rows)
