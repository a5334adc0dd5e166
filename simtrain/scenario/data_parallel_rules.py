"""Combinations of options of data parallelism that the frameworks refuse.

Sources: Megatron-LM's training/arguments.py and core/pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import numbers_of_chunks, numbers_of_stages
from simtrain.scenario.violation import rule_against


def _reduces_in_buckets(scenario: Scenario) -> bool:
    """Whether the gradients of all microbatches are reduced in buckets beside the last backward."""
    return scenario.overlap.data_parallel and scenario.memory.zero_stage < 2


DATA_PARALLEL_RULES = [
    rule_against(
        "E360",
        "parameters are gathered in the buckets in which their gradients are reduced "
        "(--overlap-param-gather needs --overlap-grad-reduce)",
        {"overlap.parameter_gather": [False], "overlap.data_parallel": [True]},
        lambda one: one.overlap.parameter_gather and not one.overlap.data_parallel,
    ),
    rule_against(
        "E361",
        "only the distributed optimizer gathers parameters beside the next forward pass; "
        "stage 0 gathers none, stage 2 at once, stage 3 within every pass",
        {"overlap.parameter_gather": [False], "memory.zero_stage": [1]},
        lambda one: one.overlap.parameter_gather and one.memory.zero_stage != 1,
    ),
    rule_against(
        "E362",
        "buckets exist where gradients are reduced once an iteration, beside the backward pass",
        {
            "overlap.gradient_buckets": ["layer"],
            "overlap.data_parallel": [True],
            "memory.zero_stage": [1, 0],
        },
        lambda one: one.overlap.gradient_buckets != "layer" and not _reduces_in_buckets(one),
        "overlap.gradient_buckets is {one.overlap.gradient_buckets}, but gradients are not reduced "
        "in buckets",
        ("overlap.gradient_buckets", "overlap.data_parallel"),
    ),
    rule_against(
        "E363",
        "stages are aligned that start to reduce their gradients beside the backward pass",
        {
            "overlap.align_gradient_reduction": [False],
            "overlap.data_parallel": [True],
            "parallelism.pipeline": numbers_of_stages,
        },
        lambda one: (
            one.overlap.align_gradient_reduction
            and (one.parallelism.pipeline < 2 or not _reduces_in_buckets(one))
        ),
        "overlap.align_gradient_reduction is true, but no two stages reduce gradients beside their "
        "backward passes",
        ("overlap.align_gradient_reduction", "overlap.data_parallel", "parallelism.pipeline"),
    ),
    rule_against(
        "E364",
        "only the interleaved schedule starts to gather ahead, chunk by chunk "
        "(Megatron-LM turns --align-param-gather off in the others)",
        {
            "overlap.align_parameter_gather": [False],
            "overlap.parameter_gather": [True],
            "parallelism.interleave": numbers_of_chunks,
        },
        lambda one: (
            one.overlap.align_parameter_gather
            and not (one.overlap.parameter_gather and one.schedule == "interleaved")
        ),
        "overlap.align_parameter_gather is true, but no interleaved chunks gather parameters "
        "beside forward passes",
        ("overlap.align_parameter_gather", "overlap.parameter_gather", "parallelism.interleave"),
    ),
]
