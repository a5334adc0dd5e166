"""Rules of context parallelism: what Megatron-LM, Transformer Engine and Colossal-AI refuse.

Sources: Megatron-LM's arguments.py and core/parallel_state.py; Transformer Engine's
attn_forward_func_with_cp and its three functions (context_parallel.py of dot_product_attention);
for ring self-attention, Li et al. 2021 and Colossal-AI's TransformerSelfAttentionRing, RingQK,
RingAV and ring_forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.scenario.context_exchanges import CONTEXT_EXCHANGES
from simtrain.scenario.rule import Condition, Rules, against, at_least, divides, requires
from simtrain.scenario.schema import Scenario


def _names(trait: str) -> tuple[str, ...]:
    """Names of the exchanges that have a trait."""
    return tuple(name for name, exchange in CONTEXT_EXCHANGES.items() if getattr(exchange, trait))


def _given(**traits: object) -> Condition:
    """Return the condition that ranks divide each sequence, by an exchange with these traits."""

    def holds(scenario: Scenario) -> bool:
        split = scenario.parallelism
        if split.context == 1:
            return False
        return all(getattr(split.context_exchange, name) == it for name, it in traits.items())

    return holds


_FUSED = _given(is_fused=True)
_BALANCED = _given(slices=2)
_CONTEXT_PARALLEL = _given()


_without_groups = _given(takes_groups=False)


def _captures_no_attention(modules: object) -> bool:
    """Whether the modules that a CUDA graph captures are without attention."""
    return "attn" not in (modules if isinstance(modules, Sequence) else ())


def _divide_apart(scenario: Scenario) -> bool:
    """Whether sequence and context parallelism, each alone, could divide the sequence."""
    split, length = scenario.parallelism, scenario.model.seq_length
    slices = split.context_exchange.slices * split.context
    is_divided = length % split.tensor == 0 and length % slices == 0
    return split.sequence_parallel and split.context > 1 and is_divided


CONTEXT_RULES = Rules()
CONTEXT_RULES += [
    requires(
        "E350",
        "parallelism.context",
        needs={"attention_backend": "fused"},
        where=_FUSED,
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
        needs={"parallelism.context_communication": _names("has_subgroups")},
        why="only a2a+p2p splits the context-parallel group into subgroups",
        example="parallelism: {context: 4, context_a2a: 2}\nattention_backend: fused",
    ),
    requires(
        "E357",
        "model.attention_window",
        needs={"parallelism.context_communication": _names("takes_windows")},
        where=_CONTEXT_PARALLEL,
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
        off=_names("takes_latent"),
        where=_FUSED,
        why="the key and value heads of latent attention differ in size, which Transformer "
        "Engine supports only with p2p and a2a+p2p",
        example="model: {latent_attention: {kv_lora_rank: 512}}\n"
        "parallelism: {context: 2, context_communication: a2a}\n"
        "attention_backend: fused",
    ),
]
rule = CONTEXT_RULES.rule


CONTEXT_RULES += [
    requires(
        "E920",
        "parallelism.context_communication",
        needs={"attention_backend": "unfused"},
        off=_names("is_fused"),
        where=_CONTEXT_PARALLEL,
        why="ring self-attention saves the scores of all pairs, which no fused kernel writes",
        example="parallelism: {context: 2, context_communication: ring_self_attention}\n"
        "attention_backend: fused",
        first=("attention_backend",),
    ),
    divides(
        "E921",
        "parallelism.context",
        "model.seq_length",
        where=_given(slices=1),
        why="each rank of ring self-attention holds one slice of every sequence, of equal lengths",
        example="model: {seq_length: 2050}\n"
        "parallelism: {context: 4, context_communication: ring_self_attention}",
    ),
    against(
        "E922",
        lambda scenario: (
            _without_groups(scenario)
            and scenario.model.num_query_groups != scenario.model.num_attention_heads
        ),
        "model.num_query_groups is {scenario.model.num_query_groups}, but "
        "model.num_attention_heads is {scenario.model.num_attention_heads}, while "
        "parallelism.context_communication is {scenario.parallelism.context_communication}",
        why="the QKV product of the published layer has three equal parts, so it has as many key "
        "heads as query heads (Colossal-AI's TransformerSelfAttentionRing)",
        example="model: {num_query_groups: 8}\n"
        "parallelism: {context: 2, context_communication: ring_self_attention}",
    ),
    requires(
        "E923",
        "parallelism.context_communication",
        needs={"model.latent_attention": None},
        off=_names("is_fused"),
        where=_CONTEXT_PARALLEL,
        why="queries, keys and values of the published layer are parts of one product, and equal "
        "in size",
        example="model: {latent_attention: {kv_lora_rank: 512}}\n"
        "parallelism: {context: 2, context_communication: ring_self_attention}",
    ),
    requires(
        "E924",
        "model.layer_pattern",
        needs={"parallelism.context_communication": _names("takes_mamba")},
        where=_CONTEXT_PARALLEL,
        why="the exchange of Mamba-2 layers puts the two slices of each rank in order "
        "(mamba_context_parallel.py), but ring self-attention has one slice per rank",
        example="model: {num_layers: 2, layer_pattern: M*}\n"
        "parallelism: {context: 2, context_communication: ring_self_attention}\n"
        "attention_backend: unfused\n"
        "software: megatron_core",
    ),
    requires(
        "E925",
        "parallelism.context_communication",
        needs={
            "software.cuda_graphs": False,
            "software.cuda_graph_modules": _captures_no_attention,
        },
        off=_names("is_fused"),
        where=_CONTEXT_PARALLEL,
        why="the host waits for the GPU after each step around the ring (ring_forward), which a "
        "CUDA graph cannot capture",
        example="parallelism: {context: 2, context_communication: ring_self_attention}\n"
        "software: {cuda_graphs: true}",
    ),
    divides(
        "E353",
        (2, "parallelism.context"),
        "model.seq_length",
        where=_BALANCED,
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
    if not split.context_exchange.has_subgroups or split.context == 1:
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
    exchange = split.context_exchange
    field = "context_a2a" if exchange.has_subgroups else "context"
    ranks = exchange.ranks_of_heads(split.context, split.context_a2a)
    heads = groups // split.tensor
    if heads % ranks == 0:
        return None
    return (
        f"parallelism.{field} is {ranks}, which does not divide the {heads} key heads per "
        f"tensor-parallel rank (model.num_query_groups {groups} / parallelism.tensor "
        f"{split.tensor})"
    )
