"""Rules of schedules: sizes of files, and what orders of other frameworks than Megatron-LM allow.

Source: PyTorch's `_PipelineScheduleRuntime`, which runs any order of actions, with asynchronous
transfers. simtrain does not simulate every option of data parallelism with such an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, Rule, Violation, registering, rule_against
from simtrain.schedules.registry import NAMED

SCHEDULE_RULES: list[Rule] = []
_rule = registering(SCHEDULE_RULES)
_NAMED = [*NAMED]
_BLOCKING = [name for name, family in NAMED.items() if family.blocks]
_ALIGNED = [name for name, family in NAMED.items() if family.aligns_reductions]
_VALIDATING = [name for name, family in NAMED.items() if family.validates_steps]
_WHOLE = [name for name, family in NAMED.items() if not family.splits_backwards]


@_rule(
    "E414",
    "a schedule's file has one line per stage, and the actions of each microbatch on each chunk",
    what=(
        "The file of a schedule has other numbers of stages, chunks or microbatches than "
        "the scenario."
    ),
    fix=(
        "Set parallelism.pipeline, parallelism.interleave and batch.global to the numbers "
        "of the file, or write another file."
    ),
    example="A file with four lines, and parallelism.pipeline 8.",
)
def _file_has_the_sizes_of_the_pipeline(scenario: Scenario) -> Violation | None:
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
    values: Mapping[str, Iterable[object]] = {field: [size] for field, size in wrong.items()}
    return Violation(
        f"{scenario.schedule} has {counts} and {schedule.num_microbatches} microbatches, but the "
        f"scenario has {split.pipeline} x {split.interleave} and {scenario.num_microbatches}",
        {**values, "schedule": _NAMED},
        ("schedule", *wrong),
    )


def _splits_backwards(scenario: Scenario) -> bool:
    """Whether some backward passes are split into input and weight gradients."""
    schedule = scenario.schedule_file or scenario.schedule_family
    return schedule.splits_backwards


def _cannot_validate_steps(scenario: Scenario) -> bool:
    """Whether post-validation is set with what its runtime refuses (validate_arguments)."""
    return scenario.overlap.optimizer_post_validation and (
        scenario.model.tied_embeddings
        or scenario.precision.compute == "fp32"
        or scenario.overlap.data_parallel
        or scenario.memory.zero_stage > 1
        or scenario.memory.offload_optimizer
    )


SCHEDULE_RULES += [
    rule_against(
        "E415",
        "Megatron-LM's schedules say which messages share a blocking exchange; other orders run in "
        "PyTorch's runtime, which does not block",
        {"overlap.pipeline": [True], "schedule": _BLOCKING},
        lambda scenario: (
            scenario.parallelism.pipeline > 1
            and not scenario.overlaps_pipeline
            and not scenario.schedule_family.blocks
        ),
        "overlap.pipeline is false, but {scenario.schedule} is not a schedule of Megatron-LM",
        ("schedule",),
        what="A schedule that Megatron-LM does not have runs with blocking transfers.",
        fix="Set overlap.pipeline to true, or name a schedule of Megatron-LM.",
        example="parallelism: {pipeline: 4}\nschedule: zb_h1\noverlap: {pipeline: false}",
    ),
    rule_against(
        "E416",
        "Megatron-LM says for its own schedules when a stage starts to reduce gradients at the "
        "same time as the others",
        {"overlap.align_gradient_reduction": [False], "schedule": _ALIGNED},
        lambda scenario: (
            scenario.aligns_gradient_reduction and not scenario.schedule_family.aligns_reductions
        ),
        "overlap.align_gradient_reduction is true, but {scenario.schedule} is not a schedule of "
        "Megatron-LM",
        what=(
            "A schedule that Megatron-LM does not have is combined with "
            "overlap.align_gradient_reduction."
        ),
        fix="Remove overlap.align_gradient_reduction, or name a schedule of Megatron-LM.",
        example=(
            "parallelism: {pipeline: 4, data: 2}\nschedule: zb_h1\n"
            "overlap: {data_parallel: true, align_gradient_reduction: true}"
        ),
    ),
    rule_against(
        "E417",
        "simtrain does not simulate when ZeRO stages 2 and 3 reduce the gradients of a backward "
        "pass whose halves (I and W) are apart; PyTorch's fully_shard can reduce them once, after "
        "all passes",
        {
            "memory.reduce_every_microbatch": [False],
            "memory.zero_stage": [1, 0],
            "schedule": _WHOLE,
        },
        lambda scenario: (
            scenario.memory.zero_stage > 1
            and _splits_backwards(scenario)
            and not (scenario.fully_shards and not scenario.reduces_every_microbatch)
        ),
        "memory.zero_stage is {scenario.memory.zero_stage}, but {scenario.schedule} splits "
        "backward passes",
        what="A schedule with split backward passes is combined with ZeRO stage 2 or 3.",
        fix=(
            "Set memory.zero_stage to 1 or 0, use PyTorch's fully_shard with "
            "memory.reduce_every_microbatch false, or write each I and W as one B."
        ),
        example="A zero-bubble schedule, and memory.zero_stage 3.",
    ),
    rule_against(
        "E418",
        "only Megatron-LM's interleaved schedule has groups of another size than one microbatch "
        "per stage",
        {"parallelism.microbatch_group_size": [LEFT_OUT]},
        lambda scenario: (
            scenario.parallelism.microbatch_group_size is not None
            and not (scenario.schedule_family.chooses_groups and not scenario.schedule_file)
        ),
        "parallelism.microbatch_group_size is set while schedule is {scenario.schedule}",
        ("parallelism.microbatch_group_size", "schedule"),
        what="parallelism.microbatch_group_size is set, but the schedule has no groups of its own.",
        fix="Remove parallelism.microbatch_group_size, or give each stage several chunks.",
        example="parallelism: {pipeline: 4, microbatch_group_size: 8}",
    ),
    rule_against(
        "E450",
        "only Zero Bubble's runtime (sail-sg) runs optimizer steps before the gradient norm of all "
        "stages exists, in pipelines with its own schedules",
        {"schedule": _VALIDATING, "overlap.optimizer_post_validation": [False]},
        lambda scenario: (
            scenario.overlap.optimizer_post_validation
            and not (
                scenario.parallelism.pipeline > 1
                and scenario.schedule_family.validates_steps
                and not scenario.schedule_file
            )
        ),
        "overlap.optimizer_post_validation is true, but {scenario.schedule} on "
        "{scenario.parallelism.pipeline} stages is not a schedule of Zero Bubble's runtime",
        ("overlap.optimizer_post_validation", "schedule"),
        what="overlap.optimizer_post_validation is true with a schedule that cannot have it.",
        fix=f"Use one of the schedules {', '.join(_VALIDATING)}, or remove the setting.",
        example=(
            "model: {tied_embeddings: false}\nparallelism: {pipeline: 4}\n"
            "overlap: {optimizer_post_validation: true}"
        ),
    ),
    rule_against(
        "E451",
        "Zero Bubble's runtime refuses a table of the embedding that two stages share, fp32, and "
        "gradients that are reduced during backward passes; its optimizer is on the GPU, whole or "
        "sharded by ZeRO stage 1",
        {
            "model.tied_embeddings": [False],
            "precision.compute": ["bf16", "fp16"],
            "overlap.data_parallel": [False],
            "memory.zero_stage": [1, 0],
            "memory.offload_optimizer": [False],
            "overlap.optimizer_post_validation": [False],
        },
        _cannot_validate_steps,
        "overlap.optimizer_post_validation is true with tied embeddings, fp32, gradients that are "
        "reduced in backward passes, or an optimizer on the host",
        ("overlap.optimizer_post_validation",),
        what=(
            "overlap.optimizer_post_validation is combined with tied embeddings, fp32, "
            "overlap.data_parallel, ZeRO stage 2 or 3, or an offloaded optimizer."
        ),
        fix=(
            "Set model.tied_embeddings, overlap.data_parallel and memory.offload_optimizer to "
            "false, memory.zero_stage to 0 or 1 and precision.compute to a 16-bit type, or remove "
            "overlap.optimizer_post_validation."
        ),
        example=(
            "model: {tied_embeddings: true}\nparallelism: {pipeline: 4}\nschedule: zb_h1\n"
            "overlap: {optimizer_post_validation: true}"
        ),
    ),
]
