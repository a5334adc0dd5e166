"""What Megatron-LM refuses of how a model is split, why it does, and what it accepts nearby.

Each rule is a function from a scenario to a violation or None. Together with those of
`simtrain.scenario.stage_rules` and `simtrain.scenario.memory_rules` they keep the promise that
nothing illegal runs and nothing legal is refused. Sources: Megatron-LM's arguments.py and
pipeline_parallel/schedules.py; the function that raises is named where it is neither.

That a stage's output (s x b x h elements) splits into t parts for `scatter_gather` needs no rule:
E301 and E302 make h a multiple of t.
"""

from __future__ import annotations

from simtrain.scenario.nearest import Fix, divisors, multiples
from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import numbers_of_chunks, numbers_of_stages
from simtrain.scenario.violation import Rule, Violation, registering

# Megatron's --make-vocab-size-divisible-by.
_VOCAB_DIVISOR = 128
_MOST_PASSES = 1_000_000

SPLIT_RULES: list[Rule] = []
_rule = registering(SPLIT_RULES)


@_rule("E301", "tensor parallelism gives each rank whole attention heads")
def _heads_split_by_tensor(scenario: Scenario) -> Violation | None:
    tensor, heads = scenario.parallelism.tensor, scenario.model.num_attention_heads
    if heads % tensor == 0:
        return None
    return Violation(
        ("parallelism.tensor", "model.num_attention_heads"),
        f"parallelism.tensor is {tensor}, which does not divide "
        f"model.num_attention_heads ({heads})",
        (
            divisors("parallelism.tensor", tensor, heads),
            multiples("model.num_attention_heads", heads, tensor),
        ),
    )


@_rule("E302", "every attention head has the same whole number of channels")
def _hidden_split_by_heads(scenario: Scenario) -> Violation | None:
    hidden, heads = scenario.model.hidden_size, scenario.model.num_attention_heads
    if hidden % heads == 0:
        return None
    return Violation(
        ("model.num_attention_heads", "model.hidden_size"),
        f"model.num_attention_heads is {heads}, which does not divide model.hidden_size ({hidden})",
        (
            divisors("model.num_attention_heads", heads, hidden),
            multiples("model.hidden_size", hidden, heads),
        ),
    )


@_rule("E303", "tensor parallelism splits the MLP's weights by columns (core's divide())")
def _ffn_split_by_tensor(scenario: Scenario) -> Violation | None:
    tensor, ffn = scenario.parallelism.tensor, scenario.model.ffn_hidden_size
    if ffn % tensor == 0:
        return None
    return Violation(
        ("model.ffn_hidden_size", "parallelism.tensor"),
        f"model.ffn_hidden_size is {ffn}, which parallelism.tensor ({tensor}) does not divide",
        (
            multiples("model.ffn_hidden_size", ffn, tensor),
            divisors("parallelism.tensor", tensor, ffn),
        ),
    )


@_rule("E304", "tensor parallelism splits the rows of the embedding (VocabParallelEmbedding)")
def _vocab_split_by_tensor(scenario: Scenario) -> Violation | None:
    tensor, vocab = scenario.parallelism.tensor, scenario.model.vocab_size
    if vocab % tensor == 0:
        return None
    divisor = _VOCAB_DIVISOR * tensor
    padded = -(-vocab // divisor) * divisor
    return Violation(
        ("model.vocab_size", "parallelism.tensor"),
        f"model.vocab_size is {vocab}, which parallelism.tensor ({tensor}) does not divide; "
        f"Megatron pads it to {padded}, a multiple of {_VOCAB_DIVISOR} x tensor",
        (
            [Fix("model.vocab_size", padded)],
            divisors("parallelism.tensor", tensor, vocab),
        ),
    )


@_rule("E306", "every replica runs the same whole number of microbatches")
def _batch_split_by_microbatches(scenario: Scenario) -> Violation | None:
    batch, data = scenario.batch, scenario.parallelism.data
    if batch.global_ % (batch.micro * data) == 0:
        return None
    return Violation(
        ("batch.global", "batch.micro", "parallelism.data"),
        f"batch.global is {batch.global_}, not a multiple of batch.micro x parallelism.data "
        f"({batch.micro} x {data} = {batch.micro * data})",
        (
            multiples("batch.global", batch.global_, _batch_unit(scenario)),
            divisors("batch.micro", batch.micro, batch.global_),
            divisors("parallelism.data", data, batch.global_),
        ),
    )


def _batch_unit(scenario: Scenario) -> int:
    """Sequences by which the global batch can grow: of one microbatch, or of a group of them."""
    group = scenario.parallelism.pipeline if scenario.parallelism.interleave > 1 else 1
    return scenario.batch.micro * scenario.parallelism.data * group


@_rule("E307", "sequence parallelism gives each tensor-parallel rank s/t of every sequence")
def _sequence_split_by_tensor(scenario: Scenario) -> Violation | None:
    tensor, length = scenario.parallelism.tensor, scenario.model.seq_length
    if not scenario.parallelism.sequence_parallel or length % tensor == 0:
        return None
    return Violation(
        ("model.seq_length", "parallelism.tensor"),
        f"model.seq_length is {length}, which parallelism.tensor ({tensor}) does not divide "
        "as sequence parallelism needs",
        (
            multiples("model.seq_length", length, tensor),
            divisors("parallelism.tensor", tensor, length),
            [Fix("parallelism.sequence_parallel", False)],
        ),
    )


@_rule("E308", "sequence parallelism splits sequences over the tensor-parallel group")
def _sequence_parallel_needs_tensor(scenario: Scenario) -> Violation | None:
    parallelism = scenario.parallelism
    if not parallelism.sequence_parallel or parallelism.tensor > 1:
        return None
    heads = scenario.model.num_attention_heads
    return Violation(
        ("parallelism.sequence_parallel", "parallelism.tensor"),
        f"parallelism.sequence_parallel is true while parallelism.tensor is {parallelism.tensor}",
        (
            [Fix("parallelism.sequence_parallel", False)],
            divisors("parallelism.tensor", 1, heads, at_least=2),
        ),
    )


@_rule("E309", "chunks are interleaved between the stages of a pipeline, and one stage has none")
def _interleave_needs_pipeline(scenario: Scenario) -> Violation | None:
    parallelism = scenario.parallelism
    if parallelism.interleave == 1 or parallelism.pipeline > 1:
        return None
    return Violation(
        ("parallelism.interleave", "parallelism.pipeline"),
        f"parallelism.interleave is {parallelism.interleave} while parallelism.pipeline is "
        f"{parallelism.pipeline}",
        (
            [Fix("parallelism.interleave", 1)],
            numbers_of_stages(scenario, at_least=2),
        ),
    )


@_rule("E310", "with two stages the next and the previous are one rank, whose batched sends mix")
def _blocking_interleave_needs_three_stages(scenario: Scenario) -> Violation | None:
    parallelism = scenario.parallelism
    if parallelism.interleave == 1 or parallelism.pipeline != 2 or scenario.overlap.pipeline:
        return None
    return Violation(
        ("parallelism.pipeline", "parallelism.interleave"),
        "parallelism.pipeline is 2, but the interleaved schedule with blocking transfers needs "
        "more than 2 stages",
        (
            numbers_of_stages(scenario, at_least=3),
            [Fix("overlap.pipeline", True)],
            [Fix("parallelism.interleave", 1)],
        ),
    )


@_rule("E311", "the interleaved schedule takes microbatches in groups of one per stage")
def _microbatches_split_by_stages(scenario: Scenario) -> Violation | None:
    stages, microbatches = scenario.parallelism.pipeline, scenario.num_microbatches
    is_whole = _batch_split_by_microbatches(scenario) is None
    if scenario.parallelism.interleave == 1 or not is_whole or microbatches % stages == 0:
        return None
    batch = scenario.batch.global_
    return Violation(
        ("batch.global", "parallelism.pipeline"),
        f"batch.global is {batch}: the microbatches of each replica ({microbatches}) are not a "
        f"multiple of parallelism.pipeline ({stages}), as the interleaved schedule needs",
        (
            multiples("batch.global", batch, _batch_unit(scenario)),
            divisors("parallelism.pipeline", stages, microbatches),
            [Fix("parallelism.interleave", 1)],
        ),
    )


@_rule("E312", "the interleaved schedule needs several chunks on each stage")
def _interleaved_needs_chunks(scenario: Scenario) -> Violation | None:
    if scenario.schedule != "interleaved" or scenario.parallelism.interleave > 1:
        return None
    return Violation(
        ("schedule", "parallelism.interleave"),
        "schedule is interleaved while parallelism.interleave is 1",
        (
            [Fix("schedule", "1f1b"), Fix("schedule", "gpipe")],
            numbers_of_chunks(scenario),
        ),
    )


@_rule("E313", "gpipe and 1f1b run one chunk on each stage")
def _chunks_need_interleaved(scenario: Scenario) -> Violation | None:
    if scenario.schedule == "interleaved" or scenario.parallelism.interleave == 1:
        return None
    return Violation(
        ("schedule", "parallelism.interleave"),
        f"schedule is {scenario.schedule} while parallelism.interleave is "
        f"{scenario.parallelism.interleave}",
        (
            [Fix("schedule", "interleaved")],
            [Fix("parallelism.interleave", 1)],
        ),
    )


@_rule("E314", "under sequence parallelism a stage's output is already split over the ranks")
def _scatter_gather_without_sequence_parallel(scenario: Scenario) -> Violation | None:
    parallelism = scenario.parallelism
    if not (parallelism.scatter_gather and parallelism.sequence_parallel):
        return None
    return Violation(
        ("parallelism.scatter_gather",),
        "parallelism.scatter_gather is true together with parallelism.sequence_parallel",
        (
            [Fix("parallelism.scatter_gather", False)],
            [Fix("parallelism.sequence_parallel", False)],
        ),
    )


@_rule("E315", "gradients are summed in fp32 or in the dtype in which they are computed")
def _gradients_match_compute(scenario: Scenario) -> Violation | None:
    precision = scenario.precision
    if precision.gradients in ("fp32", precision.compute):
        return None
    return Violation(
        ("precision.gradients", "precision.compute"),
        f"precision.gradients is {precision.gradients} while precision.compute is "
        f"{precision.compute}",
        (
            iter(
                [Fix("precision.gradients", precision.compute), Fix("precision.gradients", "fp32")]
            ),
        ),
    )


@_rule("E316", "only the interleaved schedule has asynchronous transfers; the others raise")
def _overlap_needs_interleaved(scenario: Scenario) -> Violation | None:
    if not scenario.overlap.pipeline or scenario.schedule == "interleaved":
        return None
    return Violation(
        ("overlap.pipeline", "schedule"),
        f"overlap.pipeline is true with the {scenario.schedule} schedule",
        (
            [Fix("overlap.pipeline", False)],
            numbers_of_chunks(scenario),
        ),
    )


@_rule("E332", "simtrain lays out every pass of every stage, each some hundred bytes")
def _passes_can_be_laid_out(scenario: Scenario) -> Violation | None:
    virtual_stages = scenario.parallelism.pipeline * scenario.parallelism.interleave
    microbatches, most = scenario.num_microbatches, _MOST_PASSES // virtual_stages
    if microbatches <= most:
        return None
    unit = _batch_unit(scenario)
    batch = most * scenario.batch.micro * scenario.parallelism.data
    return Violation(
        ("batch.global", "batch.micro"),
        f"batch.global is {scenario.batch.global_}: {microbatches} microbatches on "
        f"{virtual_stages} chunks are more than {_MOST_PASSES} forward passes",
        ([Fix("batch.global", max(unit, batch - batch % unit))],),
    )


def cluster_rule(gpus_per_node: int, num_nodes: int) -> Rule:
    """The rule that a job fits a cluster of `num_nodes` nodes with `gpus_per_node` GPUs each."""
    available = gpus_per_node * num_nodes

    def check(scenario: Scenario) -> Violation | None:
        parallelism = scenario.parallelism
        tensor, pipeline, data = parallelism.tensor, parallelism.pipeline, parallelism.data
        if scenario.num_gpus <= available:
            return None
        heads = scenario.model.num_attention_heads
        return Violation(
            ("parallelism.data", "parallelism.pipeline", "parallelism.tensor"),
            f"parallelism.tensor x pipeline x data is {tensor} x {pipeline} x {data} = "
            f"{scenario.num_gpus} GPUs, but the cluster has {available} "
            f"({num_nodes} nodes of {gpus_per_node})",
            (
                divisors("parallelism.data", data, scenario.batch.global_),
                numbers_of_stages(scenario),
                divisors("parallelism.tensor", tensor, heads),
            ),
        )

    return Rule("E317", "every rank of the job runs on a GPU of its own", check)
