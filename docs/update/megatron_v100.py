"""Megatron-LM's published runs on V100s, simulated, for docs/validation_details.md."""

import functools

from docs.update.published.megatron_v100 import RUNS, Run
from docs.update.request import Request, seconds, signed_percent, table
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate

SEQUENCES, SEQ_LENGTH, VOCABULARY = 8, 1024, 51200
STACKS = {"1.0": "megatron_2021", "2019": "megatron_2019"}


def scenario_of(run: Run) -> Scenario:
    """Return the scenario of a run."""
    return Scenario.model_validate(
        {
            "model": {
                "num_layers": run.layers,
                "hidden_size": run.hidden,
                "num_attention_heads": run.heads,
                "seq_length": SEQ_LENGTH,
                "vocab_size": VOCABULARY,
            },
            "parallelism": {"tensor": run.tensor, "data": run.data},
            "batch": {"micro": SEQUENCES, "global": SEQUENCES * run.data},
            "precision": {"compute": "fp16", "gradients": "fp16"},
            "recompute": "full",
            "software": STACKS[run.version],
            "cluster": "v100_dgx2",
        }
    )


def flops(run: Run) -> float:
    """Return the FLOPs of an iteration with full recompute (Narayanan et al. 2021, Equation 3)."""
    tokens = SEQUENCES * run.data * SEQ_LENGTH
    of_layers = 96 * tokens * run.layers * run.hidden**2 * (1 + SEQ_LENGTH / (6 * run.hidden))
    return of_layers + 6 * tokens * run.hidden * VOCABULARY


@functools.cache
def time_of(run: Run) -> float:
    """Return the simulated seconds of an iteration."""
    return simulate(scenario_of(run)).iteration_time_s


def published_s(run: Run) -> float:
    """Return the published time of an iteration."""
    return run.time_s or flops(run) / (run.tflops * 1e12 * run.tensor * run.data)


def megatron_v100(request: Request) -> str:
    """Return the table of the runs."""
    rows = []
    for run in RUNS:
        gpus = run.tensor * run.data
        published, ours = published_s(run), time_of(run)
        tflops = [f"{flops(run) / time_s / gpus / 1e12:.1f}" for time_s in (published, ours)]
        layout = f"{run.tensor} x {run.data}"
        names = [run.version, f"{run.parameters}B", layout, STACKS[run.version]]
        error = signed_percent(ours / published - 1)
        rows.append([*names, seconds(published), seconds(ours), error, *tflops])
    head = ["version", "model", "tensor x data", "stack", "published", "simulated", "error"]
    return table([*head, "TFLOP/s, published", "simulated"], rows)
