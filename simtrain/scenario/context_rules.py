"""Rules of context parallelism: what Megatron-LM, Transformer Engine and Colossal-AI refuse.

Sources: Megatron-LM's arguments.py and core/parallel_state.py; Transformer Engine's
attn_forward_func_with_cp and its three functions (context_parallel.py of dot_product_attention);
for ring self-attention, Li et al. 2021 and Colossal-AI's TransformerSelfAttentionRing, RingQK,
RingAV and ring_forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from simtrain.scenario.allowed_values import AllowedValues, at_least
from simtrain.scenario.context_exchanges import CONTEXT_EXCHANGES
from simtrain.scenario.divisibility import Divides
from simtrain.scenario.nearest import divisors, near_divisors, near_multiples
from simtrain.scenario.requirement import Given, Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering, rule_against


def numbers_of_context_ranks(scenario: Scenario) -> Iterable[int]:
    """Numbers of context-parallel ranks that divide the sequence, the nearest first."""
    split = scenario.parallelism
    slices = max(1, scenario.model.seq_length // split.context_exchange.slices)
    return near_divisors(split.context, slices)


def _names(trait: str) -> tuple[str, ...]:
    """Names of the exchanges that have a trait."""
    return tuple(name for name, exchange in CONTEXT_EXCHANGES.items() if getattr(exchange, trait))


def _given(words: str, **traits: object) -> Given:
    """Return the restriction to context parallelism whose exchange has these traits."""

    def holds(scenario: Scenario) -> bool:
        """Whether several ranks divide each sequence, and exchange in this way."""
        split = scenario.parallelism
        if split.context == 1:
            return False
        return all(getattr(split.context_exchange, name) == it for name, it in traits.items())

    return Given(words, holds)


_FUSED = _given("context parallelism of fused attention", is_fused=True)
_BALANCED = _given("two slices of each sequence on a context-parallel rank", slices=2)
_CONTEXT_PARALLEL = _given("context parallelism")


_without_groups = _given("", takes_groups=False).holds
_NO_ATTENTION = AllowedValues(
    lambda modules: "attn" not in (modules if isinstance(modules, Sequence) else ()),
    lambda scenario: [[each for each in scenario.facts.cuda_graph_modules if each != "attn"]],
    "has attn",
    "to modules without attn",
)
"""Modules that a CUDA graph captures, without attention."""


def _divide_apart(scenario: Scenario) -> bool:
    """Whether sequence and context parallelism, each alone, could divide the sequence."""
    split, length = scenario.parallelism, scenario.model.seq_length
    slices = split.context_exchange.slices * split.context
    is_divided = length % split.tensor == 0 and length % slices == 0
    return split.sequence_parallel and split.context > 1 and is_divided


CONTEXT_RULES: list[Rule] = [
    Requires(
        "E350",
        "parallelism.context",
        needs={"attention_backend": "fused"},
        given=_FUSED,
        needs_first=True,
        why="Transformer Engine supports context parallelism only in fused attention",
        example="parallelism: {context: 2}",
    ),
    Requires(
        "E351",
        "parallelism.context_communication",
        needs={"parallelism.context": at_least(2, numbers_of_context_ranks)},
        why="a single context-parallel rank holds whole sequences and communicates nothing",
        example="parallelism: {context_communication: a2a}",
    ),
    Requires(
        "E352",
        "parallelism.context_a2a",
        needs={"parallelism.context_communication": _names("has_subgroups")},
        why="only a2a+p2p splits the context-parallel group into subgroups",
        example="parallelism: {context: 4, context_a2a: 2}\nattention_backend: fused",
    ),
    Requires(
        "E357",
        "model.attention_window",
        needs={"parallelism.context_communication": _names("takes_windows")},
        given=_CONTEXT_PARALLEL,
        needs_first=True,
        why=(
            "a window needs a2a, which gives each rank whole sequences; Transformer Engine "
            "refuses a window with p2p, and all_gather with a window is not simulated"
        ),
        example=(
            "model: {attention_window: 512}\nparallelism: {context: 2}\nattention_backend: fused"
        ),
    ),
    Requires(
        "E358",
        "parallelism.context_communication",
        needs={"model.latent_attention": None},
        off=_names("takes_latent"),
        given=_FUSED,
        why=(
            "the key and value heads of latent attention differ in size, which Transformer "
            "Engine supports only with p2p and a2a+p2p"
        ),
        example=(
            "model: {latent_attention: {kv_lora_rank: 512}}\n"
            "parallelism: {context: 2, context_communication: a2a}\n"
            "attention_backend: fused"
        ),
    ),
]
_rule = registering(CONTEXT_RULES)


CONTEXT_RULES += [
    Requires(
        "E920",
        "parallelism.context_communication",
        needs={"attention_backend": "unfused"},
        off=_names("is_fused"),
        given=_CONTEXT_PARALLEL,
        needs_first=True,
        why="ring self-attention saves the scores of all pairs, which no fused kernel writes",
        example=(
            "parallelism: {context: 2, context_communication: ring_self_attention}\n"
            "attention_backend: fused"
        ),
    ),
    Divides(
        "E921",
        "parallelism.context",
        "model.seq_length",
        given=_given("one slice of each sequence on a context-parallel rank", slices=1),
        near={"parallelism.context": numbers_of_context_ranks},
        why="each rank of ring self-attention holds one slice of every sequence, of equal lengths",
        example=(
            "model: {seq_length: 2050}\n"
            "parallelism: {context: 4, context_communication: ring_self_attention}"
        ),
    ),
    rule_against(
        "E922",
        "the QKV product of the published layer has three equal parts, so it has as many key heads "
        "as query heads (Colossal-AI's TransformerSelfAttentionRing)",
        {
            "model.num_query_groups": lambda scenario: [scenario.model.num_attention_heads],
            "parallelism.context_communication": ["p2p"],
        },
        lambda scenario: (
            _without_groups(scenario)
            and scenario.model.num_query_groups != scenario.model.num_attention_heads
        ),
        "model.num_query_groups is {scenario.model.num_query_groups}, but "
        "model.num_attention_heads is {scenario.model.num_attention_heads}, while "
        "parallelism.context_communication is {scenario.parallelism.context_communication}",
        ("model.num_query_groups", "parallelism.context_communication"),
        what="Ring self-attention is combined with query groups.",
        fix="Remove model.num_query_groups, or set parallelism.context_communication to p2p.",
        example=(
            "model: {num_query_groups: 8}\n"
            "parallelism: {context: 2, context_communication: ring_self_attention}"
        ),
    ),
    Requires(
        "E923",
        "parallelism.context_communication",
        needs={"model.latent_attention": None},
        off=_names("is_fused"),
        given=_CONTEXT_PARALLEL,
        why=(
            "queries, keys and values of the published layer are parts of one product, and equal "
            "in size"
        ),
        example=(
            "model: {latent_attention: {kv_lora_rank: 512}}\n"
            "parallelism: {context: 2, context_communication: ring_self_attention}"
        ),
    ),
    Requires(
        "E924",
        "model.layer_pattern",
        needs={"parallelism.context_communication": _names("takes_mamba")},
        given=_CONTEXT_PARALLEL,
        why=(
            "the exchange of Mamba-2 layers puts the two slices of each rank in order "
            "(mamba_context_parallel.py), but ring self-attention has one slice per rank"
        ),
        example=(
            "model: {num_layers: 2, layer_pattern: M*}\n"
            "parallelism: {context: 2, context_communication: ring_self_attention}\n"
            "attention_backend: unfused\n"
            "software: megatron_core"
        ),
    ),
    Requires(
        "E925",
        "parallelism.context_communication",
        needs={"software.cuda_graphs": False, "software.cuda_graph_modules": _NO_ATTENTION},
        off=_names("is_fused"),
        given=_CONTEXT_PARALLEL,
        why=(
            "the host waits for the GPU after each step around the ring (ring_forward), which a "
            "CUDA graph cannot capture"
        ),
        example=(
            "parallelism: {context: 2, context_communication: ring_self_attention}\n"
            "software: {cuda_graphs: true}"
        ),
    ),
    Divides(
        "E353",
        (2, "parallelism.context"),
        "model.seq_length",
        given=_BALANCED,
        near={"parallelism.context": numbers_of_context_ranks},
        why="each context-parallel rank holds two slices of every sequence, all of equal length",
        example="model: {seq_length: 2050}\nparallelism: {context: 4}\nattention_backend: fused",
    ),
    Divides(
        "E354",
        ("parallelism.tensor", "parallelism.context"),
        "model.seq_length",
        given=Given("sequence and context parallelism, each of which divides it", _divide_apart),
        near={
            "parallelism.context": lambda scenario: near_divisors(
                scenario.parallelism.context,
                scenario.model.seq_length // scenario.parallelism.tensor,
            ),
            "parallelism.sequence_parallel": [False],
        },
        why=(
            "sequence parallelism shards the tokens of a context-parallel rank over its "
            "tensor-parallel ranks"
        ),
        example=(
            "model: {seq_length: 1936}\n"
            "parallelism: {tensor: 8, sequence_parallel: true, context: 4}\n"
            "attention_backend: fused"
        ),
    ),
]


@_rule(
    "E355",
    "a2a+p2p needs several all-to-all subgroups of at least 2 ranks each, with rings between them",
    what="context_a2a is not a divisor of the context-parallel ranks.",
    fix=(
        "Set parallelism.context_a2a to a divisor of parallelism.context other than 1 and "
        "parallelism.context."
    ),
    example=("parallelism: {context: 8, context_communication: a2a+p2p}\nattention_backend: fused"),
)
def _neighbours_divide_context(scenario: Scenario) -> Violation | None:
    split = scenario.parallelism
    if not split.context_exchange.has_subgroups or split.context == 1:
        return None
    proper = divisors(split.context)[1:-1]
    if split.context_a2a in proper:
        return None
    written = "not set" if split.context_a2a is None else str(split.context_a2a)
    return Violation(
        f"parallelism.context_a2a is {written}, but must be a divisor of parallelism.context other "
        f"than 1 and {split.context}",
        {
            "parallelism.context_a2a": proper,
            "parallelism.context": near_multiples(split.context, split.context_a2a or 1),
            "parallelism.context_communication": ["p2p", "a2a"],
        },
        ("parallelism.context_a2a", "parallelism.context_communication"),
    )


@_rule(
    "E356",
    "the all-to-all gives each context-parallel rank whole query and key heads",
    what="The all-to-all of context parallelism cannot give each rank whole heads.",
    fix="Reduce parallelism.context, or set parallelism.context_communication to p2p.",
    example=(
        "parallelism: {tensor: 16, context: 8, context_communication: a2a}\n"
        "attention_backend: fused"
    ),
)
def _heads_split_by_context(scenario: Scenario) -> Violation | None:
    split, groups = scenario.parallelism, scenario.model.num_query_groups
    if split.context == 1 or groups % split.tensor or _neighbours_divide_context(scenario):
        return None
    exchange = split.context_exchange
    field = "context_a2a" if exchange.has_subgroups else "context"
    ranks = exchange.ranks_of_heads(split.context, split.context_a2a)
    heads = groups // split.tensor
    if heads % ranks == 0:
        return None
    nearest: Iterable[int] = near_divisors(ranks, heads)
    if field == "context_a2a":
        both = near_divisors(ranks, gcd(heads, split.context), at_least=2)
        nearest = (size for size in both if size < split.context)
    return Violation(
        f"parallelism.{field} is {ranks}, which does not divide the {heads} key heads per "
        f"tensor-parallel rank (model.num_query_groups {groups} / parallelism.tensor "
        f"{split.tensor})",
        {f"parallelism.{field}": nearest, "parallelism.context_communication": ["p2p"]},
    )
