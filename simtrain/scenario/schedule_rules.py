"""Rules of schedules: sizes of files, and what orders of other frameworks than Megatron-LM allow.

Source: PyTorch's `_PipelineScheduleRuntime`, which runs any order of actions, with asynchronous
transfers. simtrain also runs them with Megatron-LM's blocking exchanges and aligned reductions if a
scenario asks for it, but not with every option of data parallelism.
"""

from __future__ import annotations

import math

from simtrain.scenario.rule import Rules, against, any_but, at_least, excludes, requires
from simtrain.scenario.schema import Scenario
from simtrain.schedules.blocking import stages_that_wait
from simtrain.schedules.registry import NAMED
from simtrain.schedules.stage_placement import looped

SCHEDULE_RULES = Rules()
rule = SCHEDULE_RULES.rule
_MOST_PASSES = 1_000_000  # as E332 refuses more
_UNFLUSHED = [name for name, family in NAMED.items() if not family.flushes]


@rule(
    "E414",
    "a schedule's file has one line per stage, and the actions of each microbatch on each chunk",
    "A file with four lines, and parallelism.pipeline 8.",
    hint="set parallelism.pipeline, parallelism.interleave and batch.global to those of the file",
)
def _file_has_the_sizes_of_the_pipeline(scenario: Scenario) -> str | None:
    schedule, split = scenario.schedule_file, scenario.parallelism
    if schedule is None:
        return None
    unit = scenario.batch.micro * split.data
    batch = schedule.num_microbatches * unit
    sizes = {
        "parallelism.pipeline": (schedule.num_stages, split.pipeline),
        "parallelism.interleave": (schedule.placement.interleave, split.interleave),
        "batch.global": (batch, scenario.batch.global_),
    }
    wrong = {field: size for field, (size, other) in sizes.items() if size != other}
    if not wrong:
        return None
    counts = f"{schedule.num_stages} stages x {schedule.placement.interleave} chunks"
    return (
        f"{scenario.schedule} has {counts} and {schedule.num_microbatches} microbatches, but the "
        f"scenario has {split.pipeline} x {split.interleave} and {scenario.num_microbatches}"
    )


@rule(
    "E415",
    "after each pass, one blocking call sends its output and receives the next pass's input; it "
    "ends when both stages of each of its messages have reached it",
    "model: {num_layers: 32}\nparallelism: {pipeline: 4, interleave: 2}\nschedule: zbv\n"
    "overlap: {pipeline: false}",
)
def _blocking_stages_do_not_wait_for_each_other(scenario: Scenario) -> str | None:
    split, family = scenario.parallelism, scenario.schedule_family
    sizes = split.pipeline, split.interleave, scenario.num_microbatches
    if scenario.overlaps_pipeline or family.blocks or split.pipeline == 1 or not sizes[-1]:
        return None
    has_order = family.is_given or (
        family.allows_chunks(split.interleave)
        and math.prod(sizes) <= _MOST_PASSES
        and not any(family.problems(*sizes))
    )
    if not has_order:
        return None  # other rules
    stages = stages_that_wait(scenario.order)
    if not stages:
        return None
    first, last = ", ".join(map(str, stages[:-1])), stages[-1]
    return (
        f"schedule is {scenario.schedule}, whose stages {first} and {last} would wait for each "
        "other, because overlap.pipeline is false"
    )


def _has_unordered_stages(scenario: Scenario) -> bool:
    placement = scenario.stage_placement
    is_looped = placement == looped(placement.num_ranks, placement.num_chunks)
    return placement.num_chunks > 1 and not is_looped


def _splits_backwards(scenario: Scenario) -> bool:
    """Whether some backward passes are split into input and weight gradients."""
    schedule = scenario.schedule_file or scenario.schedule_family
    return schedule.splits_backwards


def _has_few_microbatches(scenario: Scenario) -> bool:
    return (
        not scenario.schedule_family.flushes
        and 0 < scenario.num_microbatches < scenario.parallelism.pipeline
    )


SCHEDULE_RULES += [
    requires(
        "E982",
        "schedule",
        needs={
            "parallelism.pipeline": at_least(2),
            "overlap.pipeline": True,
            "overlap.parameter_gather": False,
            "model.tied_embeddings": False,
            "model.mtp_num_layers": 0,
            "memory.zero_stage": (0, 1),
            "memory.offload_optimizer": False,
            "offload.unit": "none",
        },
        off=any_but(*_UNFLUSHED),
        why="stages of PipeDream-2BW run their optimizer steps alone and send asynchronously; "
        "simtrain has no runs of iterations into each other with parameters or tensors that "
        "stages share, gather or offload",
        example="parallelism: {pipeline: 4}\nschedule: pipedream_2bw",
    ),
    against(
        "E983",
        _has_few_microbatches,
        "schedule {scenario.schedule} has {scenario.num_microbatches} microbatches on "
        "{scenario.parallelism.pipeline} stages",
        why="two versions of the weights are enough if the microbatches of an earlier iteration "
        "have left the pipeline when the optimizer runs, so an iteration has at least as many as "
        "stages",
        example="model: {tied_embeddings: false}\nbatch: {global: 4}\nparallelism: {pipeline: 8}\n"
        "schedule: pipedream_2bw",
    ),
    excludes(
        "E416",
        "overlap.align_gradient_reduction",
        "the chunks of the schedule do not loop over the stages",
        _has_unordered_stages,
        reads=("schedule",),
        off=False,
        why="Megatron-LM starts the reduction of a chunk on stage s after s further backward "
        "passes; all stages have finished it then only if chunks loop over the stages",
        example="model: {num_layers: 32}\nparallelism: {pipeline: 4, interleave: 2, data: 2}\n"
        "schedule: zbv\noverlap: {data_parallel: true, align_gradient_reduction: true}",
    ),
    against(
        "E417",
        lambda scenario: (
            scenario.memory.zero_stage > 1
            and _splits_backwards(scenario)
            and not (scenario.fully_shards and not scenario.reduces_every_microbatch)
        ),
        "memory.zero_stage is {scenario.memory.zero_stage}, but {scenario.schedule} splits "
        "backward passes",
        why="simtrain does not simulate when ZeRO stages 2 and 3 reduce the gradients of a "
        "backward pass whose halves (I and W) are apart; PyTorch's fully_shard can reduce them "
        "once, after all passes",
        example="A zero-bubble schedule, and memory.zero_stage 3.",
        hint="set memory.zero_stage to 1 or 0, use fully_shard with memory.reduce_every_microbatch "
        "false, or name a schedule of whole backward passes",
    ),
    excludes(
        "E418",
        "parallelism.microbatch_group_size",
        "the schedule has no groups of its own",
        lambda scenario: not scenario.schedule_family.chooses_groups or scenario.schedule_file,
        reads=("schedule",),
        off=None,
        why="only Megatron-LM's interleaved schedule has groups of another size than one "
        "microbatch per stage",
        example="parallelism: {pipeline: 4, microbatch_group_size: 8}",
    ),
    excludes(
        "E450",
        "overlap.optimizer_post_validation",
        "no schedule of Zero Bubble's runtime runs a pipeline",
        lambda scenario: (
            not (
                scenario.parallelism.pipeline > 1
                and scenario.schedule_family.validates_steps
                and not scenario.schedule_file
            )
        ),
        reads=("schedule", "parallelism.pipeline"),
        why="only Zero Bubble's runtime (sail-sg) runs optimizer steps before the gradient norm of "
        "all stages exists, in pipelines with its own schedules",
        example="model: {tied_embeddings: false}\nparallelism: {pipeline: 4}\n"
        "overlap: {optimizer_post_validation: true}",
        first=("schedule",),
    ),
    requires(
        "E451",
        "overlap.optimizer_post_validation",
        needs={
            "model.tied_embeddings": False,
            "precision.compute": any_but("fp32"),
            "overlap.data_parallel": False,
            "memory.zero_stage": (1, 0),
            "memory.offload_optimizer": False,
        },
        why="Zero Bubble's runtime refuses a table of the embedding that two stages share, "
        "fp32, and gradients that are reduced during backward passes; its optimizer is on "
        "the GPU, whole or sharded by ZeRO stage 1",
        example="model: {tied_embeddings: true}\n"
        "parallelism: {pipeline: 4}\n"
        "schedule: zb_h1\n"
        "overlap: {optimizer_post_validation: true}",
        first=(
            "model.tied_embeddings",
            "precision.compute",
            "overlap.data_parallel",
            "memory.zero_stage",
            "memory.offload_optimizer",
        ),
    ),
]
