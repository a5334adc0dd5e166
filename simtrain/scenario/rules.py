"""Rules of scenarios: what the frameworks refuse, why, and the nearest legal values.

The rules ensure that nothing illegal is simulated and nothing legal is refused. Sources:
Megatron-LM's arguments.py, transformer_config.py and pipeline_parallel/schedules.py; DeepSpeed's
runtime/pipe/engine.py for ZeRO in a pipeline; a rule names its source if it is another one. The
frameworks silently ignore some settings; simtrain refuses settings that have no effect.

Selective recompute of fused attention needs no rule: Megatron-LM checkpoints core attention with
any kernel (core/transformer/attention.py).
"""

from __future__ import annotations

from simtrain.scenario.attention_rules import ATTENTION_RULES
from simtrain.scenario.combination_rules import COMBINATION_RULES, recomputes
from simtrain.scenario.expert_rules import EXPERT_RULES
from simtrain.scenario.memory_rules import MEMORY_RULES, RECOMPUTE_RULES
from simtrain.scenario.model import CANONICAL_PARTS
from simtrain.scenario.precision_rules import FP8_SAVING_RULES, PRECISION_RULES
from simtrain.scenario.rule import Rule, Rules, against, at_most, divides, listed
from simtrain.scenario.schedule_rules import SCHEDULE_RULES, runs_two_lanes
from simtrain.scenario.schema import Scenario
from simtrain.schedules.schedule import most_outstanding

# Rules of LoRA (model.lora): what Megatron-Bridge refuses, and what is not simulated.
#
# Source: Megatron-Bridge, peft/utils.py (`ParallelLinearAdapter`) and peft/lora.py.

_RULES = Rules()
rule = _RULES.rule


def _has_gate(scenario: Scenario) -> bool:
    return scenario.model.activation in ("swiglu", "geglu")


def _splits_first_matrix(scenario: Scenario) -> bool:
    lora, split = scenario.model.lora, [*CANONICAL_PARTS]
    if scenario.replicates_adapters:  # in an MLP without a gate nothing is separate
        split = [] if _has_gate(scenario) else ["linear_fc1"]
    return lora is not None and any(map(lora.adapts, split))


def _parts_without_gate(scenario: Scenario) -> bool:
    lora, parts = scenario.model.lora, CANONICAL_PARTS["linear_fc1"]
    is_listed = lora is not None and any(part in lora.modules for part in parts)
    return is_listed and not _has_gate(scenario)


def _trains_nothing(scenario: Scenario) -> bool:
    lora, others = scenario.model.lora, ("linear_proj", "linear_fc1", "linear_fc2")
    is_latent = scenario.model.latent_attention is not None
    return lora is not None and is_latent and not any(map(lora.adapts, others))


_RULES += [
    divides(
        "E460",
        "parallelism.tensor",
        "model.lora.rank",
        where=_splits_first_matrix,
        why="tensor-parallel ranks divide the columns of the first matrix of an adapter of "
        "linear_qkv or linear_fc1 (ColumnParallelLinear)",
        example="model: {lora: {rank: 12}}\nparallelism: {tensor: 8}",
    ),
    against(
        "E465",
        _parts_without_gate,
        "model.lora.modules has a half of a gated MLP's first product, but model.activation is "
        "{scenario.model.activation}",
        why="linear_fc1_gate and linear_fc1_up are the halves of a gated MLP's first product",
        example="model: {lora: {rank: 16, modules: [linear_fc1_gate]}}",
    ),
    against(
        "E466",
        _trains_nothing,
        "model.lora.modules lists no layer of a model with latent attention",
        why="latent attention has other projections than linear_qkv, so that nothing is trained",
        example="model: {lora: {rank: 16, modules: [linear_qkv]}, latent_attention: "
        "{kv_lora_rank: 512}}\nattention_backend: fused",
    ),
]


@rule(
    "E461",
    "the experts of a rank share the adapters of Megatron-Bridge (ParallelLinearAdapter); those of "
    "experts that several ranks divide gather outputs that are summed afterwards; others are not "
    "simulated",
    "model: {biases: false, lora: {rank: 16}, experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}}\n"
    "parallelism: {tensor: 2, sequence_parallel: true}",
)
def _shares_adapters_of_experts(scenario: Scenario) -> str | None:
    lora, split, facts = scenario.model.lora, scenario.parallelism, scenario.facts
    adapts = lora is not None and any(map(lora.adapts, ("linear_fc1", "linear_fc2")))
    if scenario.model.experts is None or not adapts:
        return None
    reasons = {
        f"{split.ranks_of_expert} ranks divide each (parallelism.expert_tensor)": (
            split.ranks_of_expert > 1
        ),
        "overlap.shared_expert is true": scenario.overlap.shared_expert,
        "precision.fp8_dispatch is true": scenario.precision.fp8_dispatch,
        f"software.stack is {scenario.software.stack}": facts.kernels.separate_projections,
    }
    named = [reason for reason, holds in reasons.items() if holds]
    return f"model.lora.modules adapts experts while {listed(named, 'and')}" if named else None


# Rules of the section `variation`.


@rule("E961", "ranks are counted from 0", "variation: {slow: {rank: 64, factor: 1.2}}")
def _slow_rank_exists(scenario: Scenario) -> str | None:
    slow = scenario.variation.slow
    if slow is None or slow.rank < scenario.num_gpus:
        return None
    last = scenario.num_gpus - 1
    message = f"variation.slow.rank is {slow.rank}, but the last rank is {last}"
    return message


# Megatron's --make-vocab-size-divisible-by.
_VOCAB_DIVISOR = 128
_MOST_PASSES = 1_000_000


def _splits_hidden_size(scenario: Scenario) -> bool:
    model = scenario.model
    return not ("kv_channels" in model.model_fields_set or model.latent_attention)


def _has_groups_of_whole_heads(scenario: Scenario) -> bool:
    """Whether query groups differ from the heads, which tensor-parallel ranks can share."""
    model = scenario.model
    has_groups = model.num_query_groups != model.num_attention_heads
    return has_groups and _HEADS_OVER_TENSOR.check(scenario) is None


_HEADS_OVER_TENSOR = divides(
    "E301",
    "parallelism.tensor",
    "model.num_attention_heads",
    number_first=False,
    why="tensor parallelism gives each rank whole attention heads",
    example="parallelism: {tensor: 128}",
)
_HIDDEN_OVER_HEADS = divides(
    "E302",
    "model.num_attention_heads",
    "model.hidden_size",
    where=_splits_hidden_size,
    number_first=False,
    why="every attention head has hidden_size / num_attention_heads channels, unless "
    "model.kv_channels is set",
    example="model: {hidden_size: 6150}",
)
_RULES += [
    _HEADS_OVER_TENSOR,
    _HIDDEN_OVER_HEADS,
    divides(
        "E333",
        "model.num_query_groups",
        "model.num_attention_heads",
        number_first=False,
        why="every group has the same number of query heads, which share one key head and one "
        "value head",
        example="model: {num_query_groups: 6}",
    ),
    divides(
        "E334",
        "parallelism.tensor",
        "model.num_query_groups",
        where=_has_groups_of_whole_heads,
        number_first=False,
        why="each tensor-parallel rank has whole query groups; query groups shared by ranks are "
        "not simulated",
        example="model: {num_query_groups: 4}\nparallelism: {tensor: 8}",
    ),
    divides(
        "E303",
        "parallelism.tensor",
        "model.ffn_hidden_size",
        where=lambda scenario: scenario.model.has_dense_layers,
        why="tensor parallelism shards the weights of the MLP by columns (core/utils.py, divide)",
        example="model: {ffn_hidden_size: 16385}\nparallelism: {tensor: 4}",
    ),
    divides(
        "E304",
        "parallelism.tensor",
        "model.vocab_size",
        why="tensor parallelism shards the rows of the embedding (VocabParallelEmbedding), which "
        f"Megatron-LM pads to a multiple of {_VOCAB_DIVISOR} x parallelism.tensor",
        example="model: {vocab_size: 50257}\nparallelism: {tensor: 8}",
    ),
    divides(
        "E307",
        "parallelism.tensor",
        "model.seq_length",
        where=lambda scenario: scenario.parallelism.sequence_parallel,
        why="sequence parallelism gives each of t tensor-parallel ranks 1/t of every sequence",
        example="model: {seq_length: 2047}\nparallelism: {tensor: 8, sequence_parallel: true}",
    ),
    at_most(
        "E319",
        "recompute.num_layers",
        "the layers of the largest chunk",
        lambda scenario: max(1, *scenario.chunk_sizes),
        where=lambda scenario: scenario.recompute.strategy == "full",
        why="a unit of full recompute consists of layers of one chunk",
        example="parallelism: {pipeline: 8}\nrecompute: {strategy: full, num_layers: 7}",
    ),
    *ATTENTION_RULES,
    *COMBINATION_RULES,
    *EXPERT_RULES,
    *FP8_SAVING_RULES,
    *MEMORY_RULES,
    *PRECISION_RULES,
    *RECOMPUTE_RULES,
    *SCHEDULE_RULES,
]


@rule(
    "E335",
    "each of t tensor-parallel ranks sends 1/t of an activation",
    "model: {num_attention_heads: 5, kv_channels: 128, ffn_hidden_size: 24580}\n"
    "parallelism: {tensor: 5, pipeline: 4}",
)
def _activations_split_by_tensor(scenario: Scenario) -> str | None:
    split = scenario.parallelism
    sends = split.scatter_gather and split.pipeline > 1
    tokens = scenario.model.seq_length // split.context * scenario.batch.micro
    elements = tokens * scenario.model.hidden_size
    if not sends or elements % split.tensor == 0:
        return None
    hidden = scenario.model.hidden_size
    if _HEADS_OVER_TENSOR.check(scenario) or _HIDDEN_OVER_HEADS.check(scenario):
        return None
    return (
        f"model.hidden_size is {hidden}, which parallelism.tensor ({split.tensor}) does not divide "
        "while parallelism.scatter_gather is true; nor does it divide hidden_size times the tokens "
        "of a microbatch"
    )


@rule(
    "E306",
    "every data-parallel replica runs the same whole number of microbatches",
    "batch: {global: 66}",
)
def _batch_split_by_microbatches(scenario: Scenario) -> str | None:
    batch, micro, data = scenario.batch.global_, scenario.batch.micro, scenario.parallelism.data
    if batch % (micro * data) == 0:
        return None
    return (
        f"batch.global is {batch}, not a multiple of batch.micro x parallelism.data "
        f"({micro} x {data} = {micro * data})"
    )


@rule(
    "E311",
    "a stage with several chunks runs each of them for a group of microbatches in turn",
    "batch: {global: 60}\nparallelism: {pipeline: 8, interleave: 3}",
)
def _microbatches_run_in_groups(scenario: Scenario) -> str | None:
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
    return (
        f"batch.global is {scenario.batch.global_}, so each replica runs {microbatches} "
        f"microbatches, but {reason}"
    )


@rule(
    "E324",
    "a stage cannot exempt more microbatches from recompute than it has outstanding",
    "parallelism: {pipeline: 4}\nrecompute: {strategy: full, keep_microbatches: 5}",
)
def _kept_are_outstanding(scenario: Scenario) -> str | None:
    kept = scenario.recompute.keep_microbatches
    # Without recompute, and on a single stage, only 0 is legal: E322 and E323 say so.
    if kept == "auto" or not kept or not recomputes(scenario) or scenario.parallelism.pipeline < 2:
        return None
    outstanding = _most_outstanding(scenario)
    if outstanding is None or kept <= outstanding:
        return None
    return (
        f"recompute.keep_microbatches is {kept}, but the first stage has at most {outstanding} "
        f"outstanding microbatches"
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


@rule(
    "E332",
    "simtrain keeps every pass of every stage in memory, at some hundred bytes each",
    "batch: {micro: 1, global: 1048576}",
)
def _passes_can_be_laid_out(scenario: Scenario) -> str | None:
    chunks = scenario.parallelism.pipeline * scenario.num_chunks
    microbatches, most = scenario.num_microbatches, _MOST_PASSES // chunks
    if microbatches <= most:
        return None
    unit, split = scenario.batch.micro * scenario.parallelism.data, scenario.parallelism
    near = scenario.schedule_family.near_microbatches(split.pipeline, scenario.num_chunks, most)
    batch = unit * next((number for number in near if number <= most), 1)
    return (
        f"batch.global is {scenario.batch.global_}, which gives {microbatches} microbatches on "
        f"{chunks} chunks: more than the limit of "
        f"{_MOST_PASSES} forward passes, which a batch of {batch} reaches"
    )


RULES = tuple(sorted(_RULES, key=lambda rule: rule.code))
"""The rules that do not depend on the hardware profile, sorted by code."""


def size_rule(gpus_per_node: int, num_nodes: int) -> Rule:
    """Return the rule that a job fits on `num_nodes` nodes with `gpus_per_node` GPUs each."""

    def check(scenario: Scenario) -> str | None:
        """Return the violation of a job with more GPUs than the cluster."""
        # The scenario's own number of nodes: that of the cluster too, unless it is a remedy.
        written = scenario.hardware.get("cluster", {}).get("num_nodes")
        nodes = written if isinstance(written, int) else num_nodes
        available = gpus_per_node * nodes
        if scenario.num_gpus <= available:
            return None
        split = scenario.parallelism
        axes = ["data", "pipeline", *(["context"] if split.context > 1 else []), "tensor"]
        sizes = " x ".join(str(getattr(split, axis)) for axis in axes)
        return (
            f"parallelism.{' x '.join(axes)} is {sizes} = {scenario.num_gpus} GPUs "
            f"(hardware.cluster.num_nodes: {-(-scenario.num_gpus // gpus_per_node)}), but the "
            f"cluster has {available} ({nodes} nodes of {gpus_per_node})"
        )

    return Rule(
        "E317",
        "every rank of the job needs one GPU",
        "parallelism: {data: 8192}\nbatch: {micro: 4, global: 32768}",
        check,
        hint="reduce parallelism, choose a larger cluster, or raise hardware.cluster.num_nodes",
    )
