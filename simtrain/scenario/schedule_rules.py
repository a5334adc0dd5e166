"""Rules of schedules: stages, layouts of layers, merged passes, and orders in files.

Source: PyTorch's `_PipelineScheduleRuntime`, which runs any order of actions, with asynchronous
transfers. simtrain also runs them with Megatron-LM's blocking exchanges and aligned reductions if a
scenario asks for it, but not with every option of data parallelism.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from math import gcd

from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.rule import Rules, against, any_but, are, at_least, excludes, requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import near_divisors
from simtrain.schedules import stages_that_wait
from simtrain.schedules.stage_placement import looped

# Rules of the placement of layers on pipeline stages and chunks.
#
# Sources: transformer_config.py (uneven pipelines) and transformer_block.get_num_layers_to_build.
# Two rules go beyond Megatron-LM: they refuse a chunk without layers (its output is its input,
# which cannot be freed after the send), and two stages whose layers do not add up to the model's.

SCHEDULE_RULES = Rules()
rule = SCHEDULE_RULES.rule


def written_layers(scenario: Scenario) -> dict[str, int]:
    """Return first_stage_layers and last_stage_layers by field, if set."""
    names = ("first_stage_layers", "last_stage_layers")
    values = ((name, getattr(scenario.parallelism, name)) for name in names)
    return {f"parallelism.{name}": value for name, value in values if value is not None}


def _own_layers(scenario: Scenario) -> dict[str, int]:
    return written_layers(scenario) if scenario.parallelism.pipeline > 1 else {}


def numbers_of_chunks(scenario: Scenario) -> Iterable[int]:
    """Numbers of chunks, from 2 up, that divide the layers of every stage."""
    return near_divisors(1, max(2, gcd(*scenario.stage_sizes)), at_least=2)


@rule(
    "E305",
    "without a layout, all chunks have equally many layers, except on a stage with "
    "first_stage_layers or last_stage_layers",
    "parallelism: {pipeline: 5}",
)
def _layers_split_by_chunks(scenario: Scenario) -> str | None:
    split, layers, written = scenario.parallelism, scenario.model.num_layers, _own_layers(scenario)
    if split.layout is not None:
        return None
    stages, rest = split.pipeline - len(written), layers - sum(written.values())
    chunks = stages * split.interleave
    if (rest > 0 and rest % chunks == 0) if stages else rest == 0:
        return None
    product = f"({stages} x {split.interleave} = {chunks})"
    if stages == 0:
        return (
            f"{_sum_in_words(written)}, but model.num_layers is {layers} and there are no other "
            "stages"
        )
    if written:
        return (
            f"{_sum_in_words(written)} of model.num_layers ({layers}) leaves {rest} for {stages} "
            f"stage{'s' * (stages > 1)}, not a positive multiple of these stages x "
            f"parallelism.interleave {product}"
        )
    return (
        f"model.num_layers is {layers}, not a multiple of parallelism.pipeline x interleave "
        f"{product}"
    )


def _sum_in_words(written: dict[str, int]) -> str:
    numbers = " + ".join(map(str, written.values()))
    total = f"{numbers} = {sum(written.values())}" if len(written) > 1 else numbers
    return f"{' + '.join(written)} ({total})"


SCHEDULE_RULES += [
    requires(
        "E327",
        ("parallelism.first_stage_layers", "parallelism.last_stage_layers"),
        needs={"parallelism.pipeline": at_least(2)},
        why="a single pipeline stage holds all layers",
        example="parallelism: {last_stage_layers: 12}",
    )
]


@rule(
    "E328",
    "all chunks of a stage have equally many layers",
    "model: {num_layers: 49}\nparallelism: {pipeline: 4, interleave: 3, last_stage_layers: 13}",
)
def _own_layers_split_by_chunks(scenario: Scenario) -> str | None:
    written, chunks = _own_layers(scenario), scenario.parallelism.interleave
    uneven = {field: layers for field, layers in written.items() if layers % chunks}
    if not uneven:
        return None
    return (
        f"{are(f'{field} ({layers})' for field, layers in uneven.items())} not a multiple of "
        f"parallelism.interleave ({chunks})"
    )


# Rules of custom pipeline layouts.
#
# Source: `validate_layer_layout` in Megatron-Core's pipeline_parallel_layer_layout.py. E339 goes
# beyond it for a single stage, where a layout has no effect, and so does E495.

_LAYOUT = "parallelism.layout"
_ORDER = re.compile("Et+m*L")


@rule(
    "E339",
    "every stage has equally many chunks, pipeline x interleave in all; a single stage holds all "
    "layers",
    'parallelism: {pipeline: 4, layout: "Et*5|(t*6|)*6t*7L"}',
)
def _chunks_fill_stages(scenario: Scenario) -> str | None:
    split = scenario.parallelism
    chunks, stages = len(split.layout_chunks), split.pipeline
    if not chunks or (stages > 1 and chunks == stages * split.interleave):
        return None
    return (
        f"parallelism.layout has {chunks} chunk{'s' * (chunks > 1)}, but parallelism.pipeline x "
        f"interleave is {stages} x {split.interleave} = {stages * split.interleave}"
    )


@rule(
    "E359",
    "a model is one embedding (E), its layers (t), token prediction (m), one loss (L)",
    'parallelism: {pipeline: 2, layout: "t*24|t*24"}',
)
def _blocks_in_order(scenario: Scenario) -> str | None:
    layout = scenario.parallelism.layout
    if layout is None or _has_order(scenario):
        return None
    return f'the letters of parallelism.layout ("{layout}") are not in the order E, t, m, L'


def _has_order(scenario: Scenario) -> bool:
    return _ORDER.fullmatch("".join(scenario.parallelism.layout_chunks)) is not None


@rule(
    "E396",
    "a layout places every layer of the model",
    'parallelism: {pipeline: 2, layout: "Et*20|t*24L"}',
)
def _all_layers_are_placed(scenario: Scenario) -> str | None:
    text = "".join(scenario.parallelism.layout_chunks)
    wrong = [
        (letter, field, text.count(letter), getattr(scenario.model, field))
        for letter, field in (("t", "num_layers"), ("m", "mtp_num_layers"))
        if text.count(letter) != getattr(scenario.model, field)
    ]
    if not wrong or not _has_order(scenario):
        return None
    said = (f"{count} x {letter}, but model.{field} is {n}" for letter, field, count, n in wrong)
    return f"parallelism.layout has {', and '.join(said)}"


@rule(
    "E490",
    "all modules of token prediction (m) are in one chunk: the last chunk of a stage, but not of "
    "the first stage, whose chunks have another copy of the embedding",
    "model: {mtp_num_layers: 2, position_embedding: rope}\n"
    'parallelism: {pipeline: 4, layout: "Et*24|t*24|m|mL"}',
)
def _prediction_is_in_one_chunk(scenario: Scenario) -> str | None:
    split = scenario.parallelism
    chunks, stages = split.layout_chunks, split.pipeline
    places = [place for place, chunk in enumerate(chunks) if "m" in chunk]
    if not places or len(chunks) != stages * split.interleave or not _has_order(scenario):
        return None
    virtual_stages = scenario.stage_placement.virtual_stages[1:]
    allowed = sorted(last for *_, last in virtual_stages)
    if not allowed or (len(places) == 1 and places[0] in allowed):
        return None
    listed = " and ".join(str(place + 1) for place in places)
    return (
        f"parallelism.layout has m in chunk{'s' * (len(places) > 1)} {listed} of {len(chunks)}; m "
        f"may be in one of the chunks {allowed[0] + 1} to {allowed[-1] + 1}"
    )


@rule(
    "E495",
    "if token prediction (m) and the loss (L) are in different chunks, Megatron-Core exchanges the "
    "shape of each message first; simtrain simulates that for its interleaved schedule and without "
    "a gather on the receiver, or with blocking transfers",
    "model: {mtp_num_layers: 1, position_embedding: rope}\n"
    'parallelism: {tensor: 2, pipeline: 4, interleave: 2, layout: "Et*8|(t*8|)*5m|L"}\n'
    "overlap: {pipeline: true}",
)
def _shapes_are_exchanged(scenario: Scenario) -> str | None:
    split, chunks = scenario.parallelism, scenario.parallelism.layout_chunks
    if (
        not scenario.overlaps_pipeline
        or "m" not in "".join(chunks[:-1])
        or not _has_order(scenario)
    ):
        return None
    gathers = split.scatter_gather and split.tensor > 1
    if scenario.schedule_family.exchanges_shapes and not gathers:
        return None
    what = "parallelism.scatter_gather is true" if gathers else f"schedule is {scenario.schedule}"
    return (
        f"parallelism.layout has m and L in different chunks, but {what} and overlap.pipeline is "
        "true"
    )


SCHEDULE_RULES += [
    requires(
        "E491",
        ("parallelism.first_stage_layers", "parallelism.last_stage_layers"),
        needs={_LAYOUT: None},
        why="a layout places every layer, also those of the first and last stage",
        example='parallelism: {pipeline: 2, first_stage_layers: 20, layout: "Et*20|t*28L"}',
    )
]


# Rules of merged passes (overlap.merged_passes).
#
# Source: Megatron-LM's `TransformerConfig.__post_init__` for overlap_moe_expert_parallel_comm and
# delay_wgrad_compute.

_EXPERTS = "experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}"
_TOY = f"model: {{biases: false, {_EXPERTS}}}\nparallelism: {{data: 4, expert: 4}}\n"


def _cannot_merge(scenario: Scenario) -> bool:
    family, split = scenario.schedule_family, scenario.parallelism
    is_possible = family.can_merge and (family.has_chunks or split.pipeline == 1)
    return scenario.schedule_file is not None or not is_possible


def _without_exchanges(scenario: Scenario) -> bool:
    split = scenario.parallelism
    has_exchanges = split.expert > 1 and DISPATCHERS[scenario.expert_dispatch].overlaps_compute
    return not (scenario.model.experts and has_exchanges and not scenario.overlap.shared_expert)


def runs_two_lanes(scenario: Scenario) -> bool:
    """Whether two lanes of microbatches fill each other's gaps, so that their numbers must fit."""
    family = scenario.schedule_family
    return scenario.model_copies > 1 or (family.merges and not family.chooses_groups)


def _uneven_groups(scenario: Scenario) -> str:
    family, split = scenario.schedule_family, scenario.parallelism
    in_groups = not runs_two_lanes(scenario)  # E311
    if scenario.schedule_file or in_groups or not family.allows_chunks(split.interleave):
        return ""
    return family.uneven_groups(split.pipeline, split.interleave, scenario.num_microbatches)


def _cuts_merged_passes(scenario: Scenario) -> bool:
    schedule = scenario.schedule_file
    if schedule is None or not (scenario.reduces_in_buckets or scenario.overlaps_parameter_gather):
        return False
    return schedule.merges_ends


SCHEDULE_RULES += [
    excludes(
        "E431",
        "overlap.merged_passes",
        "the schedule cannot merge passes of these stages",
        _cannot_merge,
        reads=("schedule", "parallelism.pipeline"),
        why="Megatron-LM merges passes of interleaved stages, and without a pipeline; a schedule "
        "from a file says itself which passes it merges",
        example="model: {num_layers: 8, biases: false, "
        f"{_EXPERTS}}}\n"
        "parallelism: {pipeline: 2, data: 4, expert: 4}\n"
        "overlap: {merged_passes: true}",
    ),
    excludes(
        "E432",
        "overlap.merged_passes",
        "the ranks exchange no tokens that it could hide",
        _without_exchanges,
        reads=("parallelism.expert", "parallelism.expert_dispatch", "overlap.shared_expert"),
        why="merged passes hide the exchanges of tokens, which no shared expert may hide already",
        example="overlap: {merged_passes: true}",
    ),
    requires(
        "E433",
        "overlap.merged_passes",
        needs={"recompute.strategy": any_but("full"), "recompute.keep_microbatches": 0},
        why="Megatron-LM merges passes without full recompute, and recomputes in all microbatches",
        example=_TOY + "recompute: {strategy: full}\noverlap: {merged_passes: true}",
    ),
    excludes(
        "E434",
        "overlap.merged_passes",
        "the model predicts several tokens, or one without a pipeline",
        lambda scenario: scenario.model.mtp_num_layers > (scenario.parallelism.pipeline > 1),
        reads=("model.mtp_num_layers", "parallelism.pipeline"),
        why="Megatron-LM merges passes with at most one layer of token prediction, and with one "
        "only in a pipeline",
        example="model: {position_embedding: rope, mtp_num_layers: 1, biases: false, "
        f"{_EXPERTS}}}\n"
        "parallelism: {data: 4, expert: 4}\noverlap: {merged_passes: true}",
    ),
    excludes(
        "E435",
        "memory.zero_stage",
        "passes are merged",
        lambda scenario: scenario.merges_passes,
        reads=("overlap.merged_passes", "schedule"),
        off=(1, 0),
        why="simtrain does not simulate ZeRO stages 2 and 3 with merged passes, which gather the "
        "parameters of two chunks at a time",
        example=_TOY + "memory: {zero_stage: 2}\noverlap: {merged_passes: true}",
    ),
    against(
        "E438",
        lambda scenario: scenario.num_microbatches and _uneven_groups(scenario),
        "schedule {scenario.schedule} cannot run {scenario.num_microbatches} microbatches on "
        "{scenario.parallelism.pipeline} stages",
        why="DualPipe's lanes are full when the first microbatch returns, and two directions need "
        "halves of stages and microbatches",
        example="parallelism: {pipeline: 16}\nschedule: dualpipe",
    ),
    excludes(
        "E439",
        "memory.shard_over",
        "the schedule has two copies of the model in a pipeline",
        lambda scenario: scenario.model_copies > 1,
        reads=("schedule",),
        off=None,
        why="simtrain shards states over the replicas of both copies of the model",
        example="parallelism: {pipeline: 2, data: 4}\nschedule: dualpipe\n"
        "memory: {zero_stage: 1, shard_over: 2}",
    ),
    against(
        "E436",
        _cuts_merged_passes,
        "{scenario.schedule} merges the last backward pass or the first forward pass of a chunk, "
        "which gradients or parameters overlap",
        why="buckets cut a chunk's last backward pass and first forward pass into spans, and a "
        "merged pass cannot be cut",
        example="A file with (0F1;0B0)OVERLAP_F_B for the first F of a chunk, and data_parallel.",
        hint="write these passes in cells of their own, or set overlap.data_parallel to false",
    ),
    excludes(
        "E437",
        "overlap.delayed_weight_gradients",
        "no passes are merged",
        lambda scenario: not scenario.merges_passes,
        reads=("overlap.merged_passes", "schedule"),
        why="weight gradients are delayed behind the exchanges of merged passes",
        example="overlap: {delayed_weight_gradients: true}",
    ),
]


_MOST_PASSES = 1_000_000  # as E332 refuses more


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
    schedule = scenario.schedule_file or scenario.schedule_family
    return schedule.splits_backwards


SCHEDULE_RULES += [
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
]
