"""Alpa's plans beside the best layouts that search finds, for docs/related_work.md."""

import functools
import math

from docs.update.published.alpa import MODELS, PLANS, Plan
from docs.update.request import Request, seconds, signed_percent, table
from simtrain.hardware.load import profile_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.search.result import Candidate
from simtrain.studies.search.run import search
from simtrain.studies.simulation import simulate

SEQ_LENGTH, VOCABULARY = 1024, 51200
OF_ALPA = ("recompute", "parallelism.sequence_parallel", "schedule", "parallelism.interleave")
"""Fields that hold in the search on Alpa's ground: it recomputes everything and has 1F1B."""


def flops(plan: Plan) -> float:
    """Return the FLOPs of an iteration as the throughputs count them.

    96 B s l h^2 (1 + s / 6h) with full recompute, and 6 B s h V of the logits (Narayanan et al.
    2021, Equation 3; alpa/util.py, compute_gpt_tflops).
    """
    layers, hidden, _ = MODELS[plan.model]
    tokens = plan.batch * SEQ_LENGTH
    of_layers = 96 * tokens * layers * hidden**2 * (1 + SEQ_LENGTH / (6 * hidden))
    return of_layers + 6 * tokens * hidden * VOCABULARY


def published_s(plan: Plan) -> float:
    """Return the published time of an iteration."""
    return flops(plan) / (plan.num_gpus * plan.tflops_per_gpu * 1e12)


def scenario_of(plan: Plan) -> Scenario:
    """Return the scenario of a plan, on the machine of the paper.

    Alpa has no stack; both systems run with Megatron-LM's of 2021. Alpa shards optimizer states
    over replicas (prefer_reduce_scatter), as ZeRO 1 does; Megatron-LM of 2021 does not.
    """
    layers, hidden, heads = MODELS[plan.model]
    axes = {"tensor": plan.tensor, "pipeline": plan.pipeline, "data": plan.data}
    shards = plan.system == "Alpa" and plan.data > 1
    return Scenario.model_validate(
        {
            "model": {
                "num_layers": layers,
                "hidden_size": hidden,
                "num_attention_heads": heads,
                "seq_length": SEQ_LENGTH,
                "vocab_size": VOCABULARY,
            },
            "parallelism": axes,
            "batch": {
                "micro": plan.batch // plan.microbatches // plan.data,
                "global": plan.batch,
            },
            "precision": {"compute": "fp16"},
            "recompute": "full",
            "memory": {"zero_stage": int(shards)},
            "software": "megatron_2021",
            "cluster": "v100_p3",
        }
    )


@functools.cache
def result_of(plan: Plan) -> Result:
    """Simulate a plan, whether it fits or not."""
    return simulate(scenario_of(plan))


def peak_bytes(plan: Plan) -> float:
    """Return the largest peak of a stage of a plan."""
    return max(stage.peak_bytes for stage in result_of(plan).memory_report.stages)


@functools.cache
def best_of(plan: Plan, on_the_same_ground: bool) -> Candidate:
    """Return the fastest layout on a plan's GPUs that fits by prediction.

    Args:
        plan: the plan, whose model and batch are searched.
        on_the_same_ground: whether what Alpa cannot choose is held. The plan ran, so layouts may
            then need as much memory as it does by prediction, also if that exceeds the GPU's.
    """
    scenario = scenario_of(plan)
    hold: tuple[str, ...] = ()
    if on_the_same_ground:
        hold = OF_ALPA
        capacity = profile_of(scenario).gpu.memory_capacity.value
        if peak_bytes(plan) > capacity:
            most = f"{math.ceil(peak_bytes(plan))} B"
            scenario = scenario.replace({"hardware": {"gpu": {"memory_capacity": most}}})
    result = search(scenario, plan.num_gpus, hold=hold)
    return (*result.faster, *result.ranked)[0]


def _first_of_its_model(plan: Plan) -> Plan:
    """Return the first plan for the same model, GPUs and batch, which one search serves."""
    case = plan.model, plan.num_gpus, plan.batch
    return next(each for each in PLANS if (each.model, each.num_gpus, each.batch) == case)


def layout(scenario: Scenario) -> str:
    """Return tensor x pipeline x data, and the sequences of a microbatch."""
    axes = scenario.parallelism
    return f"{axes.tensor} x {axes.pipeline} x {axes.data}, {scenario.batch.micro}"


def alpa_plans(request: Request) -> str:
    """Return the table of the plans."""
    rows = []
    for plan in PLANS:
        published, time_s = published_s(plan), result_of(plan).iteration_time_s
        searched = []
        for best in (best_of(plan, True), best_of(_first_of_its_model(plan), False)):
            found = best.evaluation.scenario
            strategy = found.recompute.strategy
            words = "" if strategy == "full" else f", recompute {strategy}"
            searched.append(f"{seconds(best.run.iteration_time_s)}: {layout(found)}{words}")
        named = f"{layout(scenario_of(plan))}{' *' * bool(plan.remark)}"
        error = signed_percent(time_s / published - 1)
        case = [plan.system, plan.model, str(plan.num_gpus), named]
        rows.append([*case, seconds(published), f"{seconds(time_s)}, {error}", *searched])
    head = ["plan of", "model", "GPUs", "plan", "published", "simulated", "search, its axes"]
    return table([*head, "search, all axes"], rows)
