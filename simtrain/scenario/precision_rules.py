"""What fp8, fp32 and narrow optimizer states ask of a scenario.

Sources: Megatron-LM's arguments.py and optimizer_config.py; Transformer Engine's `utils.py`
(`assert_dim_for_fp8_exec`), `fused_adam.py` and float8_blockwise_tensor.py (`is_quantizable`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from simtrain.scenario.nearest import near_multiples
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering, rule_against

_DIVISORS = {"delayed": 16, "tensorwise": 16, "blockwise": 128, "mxfp8": 32}
"""What the sizes of fp8 products are multiples of."""

PRECISION_RULES: list[Rule] = [
    rule_against(
        "E393",
        "a recipe says how numbers are scaled to fp8",
        {"precision.fp8_recipe": ["delayed"], "precision.compute": ["fp8"]},
        lambda one: one.precision.fp8_recipe != "delayed" and one.precision.compute != "fp8",
    ),
    rule_against(
        "E394",
        "fp8 and narrow states are those of Transformer Engine, which other frameworks do not run",
        {
            "software.stack": ["megatron_core", "megatron_2022"],
            "precision.compute": ["bf16"],
            "precision.exp_avg": ["fp32"],
            "precision.exp_avg_sq": ["fp32"],
            "precision.main_parameters": ["fp32"],
        },
        lambda one: (
            not one.software.stack.startswith("megatron")
            and (one.precision.compute == "fp8" or one.precision.narrow_states)
        ),
        "software.stack is {one.software.stack}, which is not simulated in fp8 or with narrow "
        "optimizer states",
    ),
    rule_against(
        "E382",
        "TF32 is how tensor cores multiply fp32 numbers",
        {"precision.tf32": [False], "precision.compute": ["fp32"]},
        lambda one: one.precision.tf32 and one.precision.compute != "fp32",
    ),
    rule_against(
        "E383",
        "weights are kept in fp8 for products in fp8",
        {"precision.fp8_parameters": [False], "precision.compute": ["fp8"]},
        lambda one: one.precision.fp8_parameters and one.precision.compute != "fp8",
    ),
    rule_against(
        "E384",
        "the distributed optimizer casts the weights that are kept in fp8, and gathers them",
        {"precision.fp8_parameters": [False], "memory.zero_stage": [1]},
        lambda one: one.precision.fp8_parameters and one.memory.zero_stage != 1,
    ),
    rule_against(
        "E385",
        "mxfp8 weights are gathered in bf16 and cast after it, which is not simulated",
        {
            "precision.fp8_parameters": [False],
            "precision.fp8_recipe": ["blockwise", "tensorwise", "delayed"],
        },
        lambda one: one.precision.fp8_parameters and one.precision.fp8_recipe == "mxfp8",
    ),
    rule_against(
        "E386",
        "copies in fp8 of weights that each pass gathers anew are not simulated",
        {"memory.zero_stage": [2, 1, 0], "precision.compute": ["bf16"]},
        lambda one: one.precision.compute == "fp8" and one.memory.zero_stage == 3,
    ),
    rule_against(
        "E387",
        "fused attention has kernels for 16-bit numbers (FlashAttention, cuDNN)",
        {"attention_backend": ["unfused"], "precision.compute": ["bf16"]},
        lambda one: one.precision.compute == "fp32" and one.attention_backend == "fused",
    ),
    rule_against(
        "E392",
        "products that every tensor-parallel rank computes whole are not simulated in fp8",
        {"precision.compute": ["bf16"], "model.latent_attention": [None]},
        lambda one: one.precision.compute == "fp8" and one.model.latent_attention,
        "precision.compute is fp8 while model.latent_attention is set",
    ),
    rule_against(
        "E388",
        "the precision-aware optimizer, which has narrow states, is a distributed one on the GPU",
        {
            "memory.zero_stage": [1],
            "memory.offload_optimizer": [False],
            "precision.exp_avg": ["fp32"],
            "precision.exp_avg_sq": ["fp32"],
            "precision.main_parameters": ["fp32"],
        },
        lambda one: (
            one.precision.narrow_states
            and (one.memory.zero_stage != 1 or one.memory.offload_optimizer)
        ),
        "precision.exp_avg, exp_avg_sq and main_parameters are {one.precision.exp_avg}, "
        "{one.precision.exp_avg_sq} and {one.precision.main_parameters}, while memory has "
        "zero_stage {one.memory.zero_stage} and offload_optimizer {one.memory.offload_optimizer}",
        ("precision.exp_avg", "precision.exp_avg_sq", "precision.main_parameters"),
    ),
    rule_against(
        "E389",
        "narrow states belong to mixed precision, and a remainder to a parameter in bf16",
        {
            "precision.main_parameters": ["fp32"],
            "precision.compute": ["bf16"],
            "precision.exp_avg": ["fp32"],
            "precision.exp_avg_sq": ["fp32"],
            "precision.fp8_parameters": [False],
        },
        lambda one: (
            (one.precision.compute == "fp32" and one.precision.narrow_states)
            or (
                one.precision.main_parameters == "remainder"
                and (one.precision.compute == "fp16" or one.precision.fp8_parameters)
            )
        ),
        "precision.compute is {one.precision.compute}, with fp8_parameters "
        "{one.precision.fp8_parameters}, while exp_avg, exp_avg_sq and main_parameters are "
        "{one.precision.exp_avg}, {one.precision.exp_avg_sq} and {one.precision.main_parameters}",
        ("precision.main_parameters", "precision.exp_avg", "precision.exp_avg_sq"),
    ),
]
_rule = registering(PRECISION_RULES)


@_rule("E390", "fp8 products take sizes that their scales and 16 bytes divide")
def _sizes_in_fp8(scenario: Scenario) -> Violation | None:
    precision, split = scenario.precision, scenario.parallelism
    if precision.compute != "fp8":
        return None
    divisor, recipe = _DIVISORS[precision.fp8_recipe], precision.fp8_recipe
    tokens = scenario.model.seq_length * scenario.batch.micro
    ranks = split.context * (split.tensor if split.sequence_parallel else 1)
    sizes = (
        ("model.hidden_size", scenario.model.hidden_size, 1, 1),
        ("model.ffn_hidden_size", scenario.model.ffn_hidden_size, split.tensor, 1),
        *_head_sizes(scenario),
        ("model.seq_length", tokens, ranks, scenario.batch.micro),
    )
    for field, size, parts, times in sizes:
        if size % parts or size // parts % divisor == 0:
            continue
        own = size // times
        recipes = [name for name, other in _DIVISORS.items() if size // parts % other == 0]
        return Violation(
            f"{field} is {own}, which gives each rank {size // parts} in fp8 products: not a "
            f"multiple of {divisor}, as the recipe {recipe} needs",
            {
                field: near_multiples(own, parts * divisor),
                "precision.fp8_recipe": recipes,
                "precision.compute": ["bf16"],
            },
            (field,),
        )
    return None


def _head_sizes(scenario: Scenario) -> Iterable[tuple[str, int, int, int]]:
    """Columns of queries, and of keys and values, on all ranks, as multiples of a head."""
    model, parts = scenario.model, scenario.parallelism.tensor
    channels, heads = model.kv_channels, model.num_attention_heads
    columns = heads * channels
    yield "model.kv_channels", columns, parts, heads
    yield (
        "model.kv_channels",
        2 * model.num_query_groups * channels,
        parts,
        2 * model.num_query_groups,
    )


def products_rule(known: Collection[str]) -> Rule:
    """The rule that a cluster's GPUs multiply what a scenario computes in.

    `known` are the data types of the profile's products (`gemm.by_dtype`), and bf16.
    """

    def check(scenario: Scenario) -> Violation | None:
        precision, name = scenario.precision, scenario.precision.linear_product_type
        if name in known:
            return None
        recipes = [
            recipe
            for recipe in _DIVISORS
            if precision.model_copy(update={"fp8_recipe": recipe}).linear_product_type in known
        ]
        said = f" with fp8_recipe {precision.fp8_recipe}" if precision.compute == "fp8" else ""
        return Violation(
            f"precision.compute is {precision.compute}{said}, but the profile of "
            f"{scenario.cluster} has no products in {name} (gemm.by_dtype)",
            {
                "precision.fp8_recipe": recipes if precision.compute == "fp8" else [],
                "precision.tf32": [not precision.tf32] if precision.compute == "fp32" else [],
                "precision.compute": ["bf16"],
                "cluster": [],
            },
            ("precision.compute",) if name != "mxfp8" else ("precision.fp8_recipe",),
        )

    reason = (
        "A100 has no fp8 tensor cores, H100 and H200 have them without the scales of mxfp8, which "
        "needs Blackwell; other profiles may leave a data type out"
    )
    return Rule("E391", reason, check)
