"""Rules of scenarios: what the frameworks refuse, why, and the nearest legal values.

The rules ensure that nothing illegal is simulated and nothing legal is refused. Sources:
Megatron-LM's arguments.py, transformer_config.py and pipeline_parallel/schedules.py; DeepSpeed's
runtime/pipe/engine.py for ZeRO in a pipeline; a rule names its source if it is another one. The
frameworks silently ignore some settings; simtrain refuses settings that have no effect.

Selective recompute of fused attention needs no rule: Megatron-LM checkpoints core attention with
any kernel (core/transformer/attention.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from simtrain.scenario.at_most import AtMost
from simtrain.scenario.attention_rules import ATTENTION_RULES
from simtrain.scenario.combination_rules import COMBINATION_RULES, numbers_of_ranks, recomputes
from simtrain.scenario.context_rules import CONTEXT_RULES, numbers_of_context_ranks
from simtrain.scenario.data_parallel_rules import DATA_PARALLEL_RULES
from simtrain.scenario.deferred_rules import DEFERRED_RULES
from simtrain.scenario.divisibility import Divides
from simtrain.scenario.expert_rules import EXPERT_RULES
from simtrain.scenario.fp8_saving_rules import FP8_SAVING_RULES
from simtrain.scenario.host_state_rules import HOST_STATE_RULES
from simtrain.scenario.hybrid_rules import HYBRID_RULES
from simtrain.scenario.layout_rules import LAYOUT_RULES
from simtrain.scenario.lora_rules import LORA_RULES
from simtrain.scenario.merged_pass_rules import MERGED_PASS_RULES, runs_two_lanes
from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.offload_rules import OFFLOAD_RULES
from simtrain.scenario.packing_rules import PACKING_RULES
from simtrain.scenario.precision_rules import PRECISION_RULES
from simtrain.scenario.recompute_rules import RECOMPUTE_RULES
from simtrain.scenario.requirement import Given
from simtrain.scenario.schedule_rules import SCHEDULE_RULES
from simtrain.scenario.schema import Scenario
from simtrain.scenario.slice_rules import SLICE_RULES
from simtrain.scenario.software_rules import SOFTWARE_RULES
from simtrain.scenario.stage_rules import STAGE_RULES, numbers_of_stages
from simtrain.scenario.tensor_split_rules import TENSOR_SPLIT_RULES
from simtrain.scenario.userbuffer_rules import USERBUFFER_RULES
from simtrain.scenario.variation_rules import VARIATION_RULES
from simtrain.scenario.violation import (
    Rule,
    Violation,
    WrittenRule,
    not_a_multiple,
    registering,
)
from simtrain.schedules.partial_recompute import most_outstanding

# Megatron's --make-vocab-size-divisible-by.
_VOCAB_DIVISOR = 128
_MOST_PASSES = 1_000_000
_MOST_GROUPS = 4


def _splits_hidden_size(scenario: Scenario) -> bool:
    """Whether heads share the hidden size evenly, as without sizes of their own."""
    model = scenario.model
    return not ("kv_channels" in model.model_fields_set or model.latent_attention)


def _has_groups_of_whole_heads(scenario: Scenario) -> bool:
    """Whether query groups differ from the heads, which tensor-parallel ranks can share."""
    model = scenario.model
    has_groups = model.num_query_groups != model.num_attention_heads
    if not has_groups or not _ALONG_ONE_AXIS.holds(scenario):
        return False
    return _HEADS_OVER_TENSOR.check(scenario) is None


def _has_shared_columns(scenario: Scenario) -> bool:
    """Whether all tensor-parallel ranks divide the columns of a dense MLP."""
    return bool(scenario.model.has_dense_layers and _ALONG_ONE_AXIS.holds(scenario))


def _padded_vocabulary(scenario: Scenario) -> list[int]:
    divisor = _VOCAB_DIVISOR * scenario.parallelism.tensor
    return [-(-scenario.model.vocab_size // divisor) * divisor]


_ALONG_ONE_AXIS = Given(
    "matrices that all tensor-parallel ranks divide by columns or rows",
    lambda scenario: scenario.parallelism.has_one_axis,
)
_HEADS_OVER_TENSOR = Divides(
    "E301",
    "parallelism.tensor",
    "model.num_attention_heads",
    given=_ALONG_ONE_AXIS,
    number_first=False,
    why="tensor parallelism gives each rank whole attention heads",
    example="parallelism: {tensor: 128}",
)
_HIDDEN_OVER_HEADS = Divides(
    "E302",
    "model.num_attention_heads",
    "model.hidden_size",
    given=Given("heads without sizes of their own", _splits_hidden_size),
    number_first=False,
    why=(
        "every attention head has hidden_size / num_attention_heads channels, unless "
        "model.kv_channels is set"
    ),
    example="model: {hidden_size: 6150}",
)
_RULES: list[Rule] = [
    _HEADS_OVER_TENSOR,
    _HIDDEN_OVER_HEADS,
    Divides(
        "E333",
        "model.num_query_groups",
        "model.num_attention_heads",
        number_first=False,
        why=(
            "every group has the same number of query heads, which share one key head and one "
            "value head"
        ),
        example="model: {num_query_groups: 6}",
    ),
    Divides(
        "E334",
        "parallelism.tensor",
        "model.num_query_groups",
        given=Given("fewer query groups than heads", _has_groups_of_whole_heads),
        number_first=False,
        why=(
            "each tensor-parallel rank has whole query groups; query groups shared by ranks are "
            "not simulated"
        ),
        example="model: {num_query_groups: 4}\nparallelism: {tensor: 8}",
    ),
    Divides(
        "E303",
        "parallelism.tensor",
        "model.ffn_hidden_size",
        given=Given("a dense MLP", _has_shared_columns),
        why="tensor parallelism shards the weights of the MLP by columns (core/utils.py, divide)",
        example="model: {ffn_hidden_size: 16385}\nparallelism: {tensor: 4}",
    ),
    Divides(
        "E304",
        "parallelism.tensor",
        "model.vocab_size",
        given=_ALONG_ONE_AXIS,
        near={"model.vocab_size": _padded_vocabulary},
        why=(
            "tensor parallelism shards the rows of the embedding (VocabParallelEmbedding), which "
            f"Megatron-LM pads to a multiple of {_VOCAB_DIVISOR} x parallelism.tensor"
        ),
        example="model: {vocab_size: 50257}\nparallelism: {tensor: 8}",
    ),
    Divides(
        "E307",
        "parallelism.tensor",
        "model.seq_length",
        given=Given(
            "sequence parallelism", lambda scenario: scenario.parallelism.sequence_parallel
        ),
        near={"parallelism.sequence_parallel": [False]},
        why="sequence parallelism gives each of t tensor-parallel ranks 1/t of every sequence",
        example="model: {seq_length: 2047}\nparallelism: {tensor: 8, sequence_parallel: true}",
    ),
    AtMost(
        "E319",
        "recompute.num_layers",
        "the layers of the largest chunk",
        lambda scenario: max(1, *scenario.chunk_sizes),
        given=Given("full recompute", lambda scenario: scenario.recompute.strategy == "full"),
        near={"model.num_layers": []},
        why="a unit of full recompute consists of layers of one chunk",
        example="parallelism: {pipeline: 8}\nrecompute: {strategy: full, num_layers: 7}",
    ),
    *ATTENTION_RULES,
    *STAGE_RULES,
    *LAYOUT_RULES,
    *CONTEXT_RULES,
    *COMBINATION_RULES,
    *DATA_PARALLEL_RULES,
    *DEFERRED_RULES,
    *EXPERT_RULES,
    *HYBRID_RULES,
    *USERBUFFER_RULES,
    *VARIATION_RULES,
    *PRECISION_RULES,
    *FP8_SAVING_RULES,
    *RECOMPUTE_RULES,
    *SCHEDULE_RULES,
    *MERGED_PASS_RULES,
    *SLICE_RULES,
    *TENSOR_SPLIT_RULES,
    *LORA_RULES,
    *OFFLOAD_RULES,
    *HOST_STATE_RULES,
    *PACKING_RULES,
    *SOFTWARE_RULES,
]
_rule = registering(_RULES)


@_rule(
    "E335",
    "each of t tensor-parallel ranks sends or saves 1/t of an activation",
    what="Tensor-parallel ranks cannot send or save equal shares of an activation.",
    fix=(
        "Change model.seq_length or batch.micro, or set parallelism.scatter_gather or "
        "recompute.distribute to false."
    ),
    example=(
        "model: {num_attention_heads: 5, kv_channels: 128, ffn_hidden_size: 24580}\n"
        "parallelism: {tensor: 5, pipeline: 4}"
    ),
)
def _activations_split_by_tensor(scenario: Scenario) -> Violation | None:
    split = scenario.parallelism
    sends = split.scatter_gather and split.pipeline > 1
    tokens = scenario.model.seq_length // split.context * scenario.batch.micro
    elements = tokens * scenario.model.hidden_size
    if not (sends or scenario.recompute.distribute) or elements % split.tensor == 0:
        return None
    if _HEADS_OVER_TENSOR.check(scenario) or _HIDDEN_OVER_HEADS.check(scenario):
        return None
    switch = "parallelism.scatter_gather" if sends else "recompute.distribute"
    more = (
        f" while {switch} is true; nor does it divide hidden_size times the tokens of a microbatch"
    )
    return not_a_multiple(scenario, "model.hidden_size", more=more, values={switch: [False]})


@_rule(
    "E306",
    "every data-parallel replica runs the same whole number of microbatches",
    what="The global batch is not a whole number of microbatches per replica.",
    fix="Set batch.global to a multiple of batch.micro x parallelism.data.",
    example="batch: {global: 66}",
)
def _batch_split_by_microbatches(scenario: Scenario) -> Violation | None:
    batch, micro, data = scenario.batch.global_, scenario.batch.micro, scenario.parallelism.data
    if batch % (micro * data) == 0:
        return None
    return Violation(
        f"batch.global is {batch}, not a multiple of batch.micro x parallelism.data "
        f"({micro} x {data} = {micro * data})",
        {
            "batch.global": _near_batches(scenario),
            "batch.micro": near_divisors(micro, batch),
            "parallelism.data": near_divisors(data, batch),
        },
    )


def _near_batches(scenario: Scenario) -> Iterator[int]:
    """Yield batches whose microbatches the schedule can run, the nearest first."""
    unit, stages = scenario.batch.micro * scenario.parallelism.data, scenario.parallelism.pipeline
    number = scenario.batch.global_ / unit
    family = scenario.schedule_family
    for legal in family.near_microbatches(stages, scenario.num_chunks, number):
        if legal * unit != scenario.batch.global_:
            yield legal * unit


@_rule(
    "E311",
    "a stage with several chunks runs each of them for a group of microbatches in turn",
    what="The schedule cannot run the number of microbatches per replica in groups.",
    fix="Change batch.global, batch.micro, parallelism.pipeline or microbatch_group_size.",
    example=("batch: {global: 60}\nparallelism: {pipeline: 8, interleave: 3}"),
)
def _microbatches_run_in_groups(scenario: Scenario) -> Violation | None:
    split, family, microbatches = (
        scenario.parallelism,
        scenario.schedule_family,
        scenario.num_microbatches,
    )
    in_lanes = runs_two_lanes(scenario)  # another rule
    if scenario.schedule_file or in_lanes or not family.allows_chunks(split.interleave):
        return None
    sizes = split.pipeline, split.interleave, microbatches
    reason = microbatches and family.uneven_groups(*sizes)
    if not reason or _batch_split_by_microbatches(scenario):
        return None
    return Violation(
        f"batch.global is {scenario.batch.global_}, so each replica runs {microbatches} "
        f"microbatches, but {reason}",
        {
            "batch.global": _near_batches(scenario),
            "parallelism.microbatch_group_size": islice(family.group_sizes(*sizes), _MOST_GROUPS),
            "parallelism.pipeline": near_divisors(split.pipeline, microbatches),
            "parallelism.interleave": [1],
        },
    )


@_rule(
    "E324",
    "a stage cannot exempt more microbatches from recompute than it has outstanding",
    what="keep_microbatches is larger than the number of outstanding microbatches.",
    fix=("Set recompute.keep_microbatches to at most the number in the error message, or to auto."),
    example=("parallelism: {pipeline: 4}\nrecompute: {strategy: full, keep_microbatches: 5}"),
)
def _kept_are_outstanding(scenario: Scenario) -> Violation | None:
    kept = scenario.recompute.keep_microbatches
    # Without recompute, and on a single stage, only 0 is legal: E322 and E323 say so.
    if kept == "auto" or not kept or not recomputes(scenario) or scenario.parallelism.pipeline < 2:
        return None
    outstanding = _most_outstanding(scenario)
    if outstanding is None or kept <= outstanding:
        return None
    return Violation(
        f"recompute.keep_microbatches is {kept}, but the first stage has at most {outstanding} "
        f"outstanding microbatches",
        {
            "recompute.keep_microbatches": [outstanding],
            "parallelism.pipeline": [],
            "batch.global": [],
        },
    )


def _most_outstanding(scenario: Scenario) -> int | None:
    """Return the most forward passes of the first stage that wait for their backward pass.

    None if no schedule has these sizes, or one too large to build: other rules refuse them.
    """
    if scenario.schedule_file is not None:
        return int(most_outstanding(scenario.schedule_file)[0])
    sizes = scenario.parallelism.pipeline, scenario.num_chunks, scenario.num_microbatches
    family = scenario.schedule_family
    is_refused = any(family.problems(*sizes)) or _passes_can_be_laid_out(scenario)
    return None if is_refused else family.most_outstanding(*sizes)


@_rule(
    "E332",
    "simtrain keeps every pass of every stage in memory, at some hundred bytes each",
    what="The iteration has more passes than simtrain can keep in memory.",
    fix=(
        "Reduce batch.global. Beyond a few microbatches per stage, the time of an iteration"
        " grows in proportion to it."
    ),
    example="batch: {micro: 1, global: 1048576}",
)
def _passes_can_be_laid_out(scenario: Scenario) -> Violation | None:
    chunks = scenario.parallelism.pipeline * scenario.num_chunks
    chunks *= scenario.parallelism.sequence_slices
    microbatches, most = scenario.num_microbatches, _MOST_PASSES // chunks
    if microbatches <= most:
        return None
    unit, split = scenario.batch.micro * scenario.parallelism.data, scenario.parallelism
    near = scenario.schedule_family.near_microbatches(split.pipeline, scenario.num_chunks, most)
    batch = unit * next((number for number in near if number <= most), 1)
    return Violation(
        f"batch.global is {scenario.batch.global_}, which gives {microbatches} microbatches on "
        f"{chunks} chunks{' and slices' * (split.sequence_slices > 1)}: more than the limit of "
        f"{_MOST_PASSES} forward passes",
        {"batch.global": [batch], "batch.micro": []},
    )


RULES = tuple(sorted(_RULES, key=lambda rule: rule.code))
"""The rules that do not depend on the hardware profile, sorted by code."""


def size_rule(gpus_per_node: int, num_nodes: int) -> Rule:
    """Return the rule that a job fits on `num_nodes` nodes with `gpus_per_node` GPUs each."""

    def check(scenario: Scenario) -> Violation | None:
        """Return the violation of a job with more GPUs than the cluster."""
        # The scenario's own number of nodes: that of the cluster too, unless it is a remedy.
        written = scenario.hardware.get("cluster", {}).get("num_nodes")
        nodes = written if isinstance(written, int) else num_nodes
        available = gpus_per_node * nodes
        if scenario.num_gpus <= available:
            return None
        split = scenario.parallelism
        axes = ["tensor", *(["context"] if split.context > 1 else []), "pipeline", "data"]
        sizes = " x ".join(str(getattr(split, axis)) for axis in axes)
        return Violation(
            f"parallelism.{' x '.join(axes)} is {sizes} = {scenario.num_gpus} GPUs, but the "
            f"cluster has {available} ({nodes} nodes of {gpus_per_node})",
            {
                "parallelism.data": near_divisors(split.data, scenario.batch.global_),
                "parallelism.context": numbers_of_context_ranks(scenario),
                "parallelism.pipeline": numbers_of_stages(scenario, at_least=1),
                "parallelism.tensor": numbers_of_ranks(scenario, at_least=1),
                "hardware.cluster.num_nodes": [-(-scenario.num_gpus // gpus_per_node)],
            },
        )

    return WrittenRule(
        "E317",
        "every rank of the job needs one GPU",
        check,
        what="The scenario needs more GPUs than the cluster has.",
        fix=(
            "Reduce parallelism, choose a larger cluster, or raise its number of nodes: "
            "hardware: {cluster: {num_nodes: 100}}."
        ),
        example=("parallelism: {data: 8192}\nbatch: {micro: 4, global: 32768}"),
    )
