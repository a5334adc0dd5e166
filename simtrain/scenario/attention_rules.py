"""Rules of attention and of long contexts.

Sources: FlashAttention-2 and cuDNN for head sizes; Megatron-LM's arguments.py,
transformer/multi_latent_attention.py and transformer/dot_product_attention.py.
"""

from __future__ import annotations

from simtrain.scenario.rule import (
    Rules,
    against,
    are,
    at_least,
    at_most,
    divides,
    excludes,
    is_set,
    requires,
)
from simtrain.scenario.schema import Scenario

ATTENTION_RULES = Rules()
rule = ATTENTION_RULES.rule

ATTENTION_RULES += [
    requires(
        "E340",
        "model.attention_window",
        needs={"attention_backend": "fused"},
        why="unfused attention computes the scores of all pairs of tokens, and Megatron-LM's "
        "fused softmax does not support a window (fused_softmax.py)",
        example="model: {attention_window: 512}",
        first=("attention_backend",),
    ),
    requires(
        "E336",
        "model.full_attention_every",
        needs={"model.attention_window": is_set},
        why="without model.attention_window, every layer attends to all tokens",
        example="model: {full_attention_every: 2}",
    ),
    at_most(
        "E337",
        "model.full_attention_every",
        "model.num_layers",
        lambda scenario: scenario.model.num_layers,
        why="at least one layer must attend to all tokens; otherwise the setting has no effect",
        example="model: {attention_window: 512, full_attention_every: 1000}\nattention_backend: "
        "fused",
    ),
    against(
        "E342",
        lambda scenario: (
            scenario.model.latent_attention
            and scenario.model.num_query_groups != scenario.model.num_attention_heads
        ),
        "model.num_query_groups is {scenario.model.num_query_groups} while "
        "model.latent_attention is set",
        why="latent attention computes separate keys and values for every head (Megatron-LM's "
        "arguments.py)",
        example="model: {latent_attention: {kv_lora_rank: 512}, num_query_groups: 8}\n"
        "attention_backend: fused",
    ),
]

_MOST_CHANNELS, _CHANNELS_STEP = 256, 8


@rule(
    "E330",
    "fused kernels support heads of 8, 16, ... 256 channels (FlashAttention-2, cuDNN)",
    "model: {num_attention_heads: 16}\nattention_backend: fused",
)
def _fused_heads(scenario: Scenario) -> str | None:
    model = scenario.model
    if scenario.attention_backend != "fused":
        return None
    if model.latent_attention:
        return _latent_heads(scenario)
    hidden, heads, channels = model.hidden_size, model.num_attention_heads, model.kv_channels
    has_channels = "kv_channels" in model.model_fields_set
    if _is_supported(channels) or not (has_channels or hidden % heads == 0):
        return None
    message = f"attention_backend is fused, but heads have {channels} channels"
    if has_channels:
        return message
    return f"{message} (model.hidden_size {hidden} / model.num_attention_heads {heads})"


def _latent_heads(scenario: Scenario) -> str | None:
    latent, section = scenario.model.latent_attention, "model.latent_attention"
    if latent is None or (_is_supported(latent.query_size) and _is_supported(latent.v_head_dim)):
        return None
    return (
        f"attention_backend is fused, but query and key heads have {latent.query_size} channels "
        f"({section}.qk_head_dim + qk_pos_emb_head_dim) and value heads {latent.v_head_dim}"
    )


def _is_supported(channels: int) -> bool:
    return channels <= _MOST_CHANNELS and channels % _CHANNELS_STEP == 0


@rule(
    "E343",
    "latent attention adds no biases to queries, keys and values, and takes its head sizes from "
    "model.latent_attention",
    "model: {latent_attention: {kv_lora_rank: 512}, kv_channels: 128}\nattention_backend: fused",
)
def _latent_attention_reads(scenario: Scenario) -> str | None:
    model = scenario.model
    names = [
        f"model.{name}"
        for name in ("kv_channels", "qkv_biases")
        if name in model.model_fields_set and getattr(model, name)
    ]
    if model.latent_attention is None or not names:
        return None
    return (
        f"{are(names)} set together with model.latent_attention, which ignores "
        f"{'it' if len(names) == 1 else 'them'}"
    )


# Rules of context parallelism: what Megatron-LM and Transformer Engine refuse.
#
# Sources: Megatron-LM's arguments.py and core/parallel_state.py; Transformer Engine's
# attn_forward_func_with_cp and its three functions (context_parallel.py of dot_product_attention).


def _is_context_parallel(scenario: Scenario) -> bool:
    return scenario.parallelism.context > 1


def _divide_apart(scenario: Scenario) -> bool:
    """Whether sequence and context parallelism, each alone, could divide the sequence."""
    split, length = scenario.parallelism, scenario.model.seq_length
    is_divided = length % split.tensor == 0 and length % (2 * split.context) == 0
    return split.sequence_parallel and split.context > 1 and is_divided


ATTENTION_RULES += [
    requires(
        "E350",
        "parallelism.context",
        needs={"attention_backend": "fused"},
        where=_is_context_parallel,
        why="Transformer Engine supports context parallelism only in fused attention",
        example="parallelism: {context: 2}",
        first=("attention_backend",),
    ),
    requires(
        "E351",
        "parallelism.context_communication",
        needs={"parallelism.context": at_least(2)},
        why="a single context-parallel rank holds whole sequences and communicates nothing",
        example="parallelism: {context_communication: a2a}",
    ),
    requires(
        "E352",
        "parallelism.context_a2a",
        needs={"parallelism.context_communication": "a2a+p2p"},
        why="only a2a+p2p splits the context-parallel group into subgroups",
        example="parallelism: {context: 4, context_a2a: 2}\nattention_backend: fused",
    ),
    requires(
        "E357",
        "model.attention_window",
        needs={"parallelism.context_communication": "a2a"},
        where=_is_context_parallel,
        why="a window needs a2a, which gives each rank whole sequences; Transformer Engine "
        "refuses a window with p2p, and all_gather with a window is not simulated",
        example="model: {attention_window: 512}\nparallelism: {context: 2}\nattention_backend: "
        "fused",
        first=("parallelism.context_communication",),
    ),
    requires(
        "E358",
        "parallelism.context_communication",
        needs={"model.latent_attention": None},
        off=("p2p", "a2a+p2p"),
        where=_is_context_parallel,
        why="the key and value heads of latent attention differ in size, which Transformer "
        "Engine supports only with p2p and a2a+p2p",
        example="model: {latent_attention: {kv_lora_rank: 512}}\n"
        "parallelism: {context: 2, context_communication: a2a}\n"
        "attention_backend: fused",
    ),
]


ATTENTION_RULES += [
    divides(
        "E353",
        (2, "parallelism.context"),
        "model.seq_length",
        where=_is_context_parallel,
        why="each context-parallel rank holds two slices of every sequence, all of equal length",
        example="model: {seq_length: 2050}\nparallelism: {context: 4}\nattention_backend: fused",
    ),
    divides(
        "E354",
        ("parallelism.tensor", "parallelism.context"),
        "model.seq_length",
        where=_divide_apart,
        why="sequence parallelism shards the tokens of a context-parallel rank over its "
        "tensor-parallel ranks",
        example="model: {seq_length: 1936}\n"
        "parallelism: {tensor: 8, sequence_parallel: true, context: 4}\n"
        "attention_backend: fused",
    ),
]


@rule(
    "E355",
    "a2a+p2p needs several all-to-all subgroups of at least 2 ranks each, with rings between them",
    "parallelism: {context: 8, context_communication: a2a+p2p}\nattention_backend: fused",
)
def _neighbours_divide_context(scenario: Scenario) -> str | None:
    split = scenario.parallelism
    if split.context_communication != "a2a+p2p" or split.context == 1:
        return None
    size = split.context_a2a
    if size is not None and 1 < size < split.context and split.context % size == 0:
        return None
    written = "not set" if split.context_a2a is None else str(split.context_a2a)
    return (
        f"parallelism.context_a2a is {written} while parallelism.context_communication is "
        f"{split.context_communication}; it must be a divisor of parallelism.context other than 1 "
        f"and {split.context}"
    )


@rule(
    "E356",
    "the all-to-all gives each context-parallel rank whole query and key heads",
    "parallelism: {tensor: 16, context: 8, context_communication: a2a}\nattention_backend: fused",
)
def _heads_split_by_context(scenario: Scenario) -> str | None:
    split, groups = scenario.parallelism, scenario.model.num_query_groups
    if split.context == 1 or groups % split.tensor or _neighbours_divide_context(scenario):
        return None
    field = "context_a2a" if split.context_communication == "a2a+p2p" else "context"
    ranks, heads = split.ranks_of_heads, groups // split.tensor
    if heads % ranks == 0:
        return None
    return (
        f"parallelism.{field} is {ranks}, which does not divide the {heads} key heads per "
        f"tensor-parallel rank (model.num_query_groups {groups} / parallelism.tensor "
        f"{split.tensor})"
    )


_PACKED = "batch.packed_lengths"


def _unit(scenario: Scenario) -> int:
    return 2 * scenario.parallelism.context


def _has_other_kernel(scenario: Scenario) -> bool:
    split = scenario.parallelism
    exchanges = split.context > 1 and split.context_communication != "p2p"
    is_other = scenario.attention_backend != "fused" or exchanges
    return is_other or scenario.model.layer_pattern is not None


def _uneven_documents(scenario: Scenario) -> bool:
    if scenario.parallelism.context == 1 or _has_other_kernel(scenario):
        return False
    return any(length % _unit(scenario) for length, _ in scenario.documents)


ATTENTION_RULES += [
    requires(
        "E410",
        "batch.micro",
        needs={_PACKED: None},
        off=1,
        why="a microbatch in the THD format is one packed sequence, which Megatron-Bridge requires",
        example="batch: {micro: 2, global: 8, packed_lengths: [512]}\nattention_backend: fused",
    ),
    excludes(
        "E419",
        _PACKED,
        "attention has no kernel for variable lengths",
        _has_other_kernel,
        reads=("attention_backend", "parallelism.context_communication", "model.layer_pattern"),
        off=None,
        why="attention within documents needs a fused kernel for variable lengths; with context "
        "parallelism it is simulated with p2p only, and not in hybrid models",
        example="batch: {micro: 1, packed_lengths: [512]}\nattention_backend: unfused",
        first=("attention_backend", "parallelism.context_communication", "model.layer_pattern"),
    ),
    against(
        "E420",
        _uneven_documents,
        "batch.packed_lengths gives documents whose lengths are not multiples of 2 x "
        "parallelism.context",
        why="each context-parallel rank holds two slices of every document, which must be padded "
        "to a multiple of 2 x parallelism.context (pad_seq_to_mult)",
        example="batch: {micro: 1, packed_lengths: [500]}\nparallelism: {context: 4}\n"
        "attention_backend: fused",
    ),
]
