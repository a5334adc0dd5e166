"""PipeOffload's published runs, simulated, for docs/related_work.md."""

import functools

from docs.update.published.pipeoffload import MODELS, RUNS, Run
from docs.update.request import Request, percent, signed_percent, table
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.units import GIB

_SCHEDULES = {"1F1B": "1f1b", "1F1B-I": "interleaved", "GIS": "gis"}


def scenario_of(run: Run) -> Scenario:
    """Return the scenario of a run.

    Norms and GELU are computed again, as in the paper, and torch keeps no other outputs. PO-H and
    PO-F are taken as GIS-H with the first half of the chunks on the host, and with all of them.
    """
    model, schedule = MODELS[run.model], _SCHEDULES.get(run.schedule, "gis_h")
    parallelism: dict[str, object] = {"pipeline": model.stages}
    overlap = {}
    if schedule == "1f1b":
        at_ends = (model.layers + 2) // model.stages - 1
        parallelism |= {"first_stage_layers": at_ends, "last_stage_layers": at_ends}
    else:
        parallelism |= {"interleave": model.chunks, "layout": "E|" + "t|" * model.layers + "L"}
        overlap = {"pipeline": True}  # Megatron-LM's default, on which their code is based
    half = {"chunks": -(-model.chunks // 2)} if run.schedule == "PO-H" else {}
    return Scenario.model_validate(
        {
            "model": {
                "num_layers": model.layers,
                "hidden_size": model.hidden,
                "num_attention_heads": model.heads,
                "num_query_groups": 8,
                "seq_length": run.seq_length,
                "position_embedding": "rope",
                "biases": False,
                "hidden_dropout": 0,
                "attention_dropout": 0,
            },
            "parallelism": parallelism,
            "overlap": overlap,
            "batch": {"micro": 1, "global": model.microbatches},
            "schedule": schedule,
            "attention_backend": "fused",
            "software": "torchtitan_compiled",
            "recompute": {"saved_ops": ["products", "attention"]},
            "offload": {"unit": "chunk"} | half if run.schedule.startswith("PO") else "none",
        }
    )


@functools.cache
def result_of(run: Run) -> Result:
    """Simulate a run."""
    return simulate(scenario_of(run))


def activations_gib(run: Run) -> float:
    """Return activations and buffers of the stage that has most of both."""
    stages = result_of(run).memory_report.stages
    return max(one.activations_bytes + sum(one.buffers_bytes.values()) for one in stages) / GIB


def pipe_offload(request: Request) -> str:
    """Return the table of the published runs."""
    rows = []
    for run in RUNS:
        result, ours = result_of(run), activations_gib(run)
        case = [run.model, f"{run.seq_length:,}", run.schedule]
        simulated = [percent(result.mfu), f"{ours:.1f} GiB"]
        if not result.memory_report.fits:
            simulated[1] += ", out of memory"
        if run.mfu is None or run.activations_gib is None:
            rows.append([*case, "", "out of memory", *simulated, ""])
            continue
        published = [f"{100 * run.mfu:.0f} %", f"{run.activations_gib:.0f} GiB"]
        rows.append([*case, *published, *simulated, signed_percent(ours / run.activations_gib - 1)])
    head = ["model", "sequence", "schedule", "MFU, published", "activations, published"]
    return table([*head, "MFU, simulated", "activations, simulated", "error"], rows)
