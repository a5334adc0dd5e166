"""Rules of precision, of userbuffers, and of entries of the software stack.

Sources: Megatron-LM's arguments.py, optimizer_config.py, transformer_config.py and fp8_utils.py;
Transformer Engine's `utils.py` (`assert_dim_for_fp8_exec`), `fused_adam.py`,
float8_blockwise_tensor.py and mxfp8_tensor.py (`is_quantizable`, without which ranks gather bf16).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from simtrain.scenario.model import LatentAttention
from simtrain.scenario.parallelism import Parallelism
from simtrain.scenario.rule import Rule, Rules, against, any_but, at_most, excludes, requires, shown
from simtrain.scenario.schema import Scenario

PRECISION_RULES = Rules()
rule = PRECISION_RULES.rule

_DIVISORS = {"delayed": 16, "tensorwise": 16, "blockwise": 128, "mxfp8": 32, "NVFP4": 32}
"""The required divisor of the sizes of fp8 and fp4 products, by recipe.

fp4 needs 16 bytes (Megatron-LM's `get_fp4_align_size`).
"""
_NOT_GATHERED = _DIVISORS | {"blockwise": 16}
"""As _DIVISORS, for sizes that no rank gathers; the last block of 128 may be incomplete."""
_STATES = "precision.exp_avg", "precision.exp_avg_sq", "precision.main_parameters"


def _is_frozen(scenario: Scenario) -> bool:
    return scenario.model.lora is not None


PRECISION_RULES += [
    requires(
        "E393",
        "precision.fp8_recipe",
        needs={"precision.compute": "fp8"},
        why="a recipe sets how numbers are scaled to fp8; it has no effect in other dtypes",
        example="precision: {fp8_recipe: tensorwise}",
    ),
    against(
        "E394",
        lambda scenario: (
            (scenario.precision.casts and scenario.facts.fp8_library == "none")
            or (scenario.precision.compute == "fp4" and scenario.uses_torchao)
            or (scenario.precision.narrow_states and not scenario.facts.narrow_optimizer_states)
        ),
        "software.stack is {scenario.software.stack}, which is not simulated in "
        "{scenario.precision.compute} or with narrow optimizer states",
        why="fp8 is simulated as in Transformer Engine or in torchao with torch.compile; fp4 and "
        "narrow optimizer states are simulated as in Transformer Engine",
        example="precision: {compute: fp8}\nsoftware: torchtitan",
    ),
    requires(
        "E487",
        ("precision.first_layers_bf16", "precision.last_layers_bf16"),
        needs={"precision.compute": ("fp8", "fp4")},
        why="products of a model in 16 or 32 bits need no layers in bf16",
        example="precision: {first_layers_bf16: 1}",
    ),
    requires(
        "E499",
        "precision.fp8_recipe",
        needs={"precision.first_layers_bf16": 0, "precision.last_layers_bf16": 0},
        off=any_but("delayed"),
        where=lambda scenario: scenario.fp8_recipe == "delayed",
        why="delayed scaling reduces the absolute maxima of all layers together, so Megatron-LM "
        "allows no layers in bf16 with it (get_fp8_context)",
        example="precision: {compute: fp8, first_layers_bf16: 1}\nsoftware: megatron_core",
    ),
    requires(
        "E382",
        "precision.tf32",
        needs={"precision.compute": "fp32"},
        why="TF32 applies only to fp32 products on tensor cores",
        example="precision: {tf32: true}",
    ),
    requires(
        "E383",
        "precision.fp8_parameters",
        needs={"precision.compute": "fp8"},
        off=False,
        why="weights are stored or gathered in fp8 only for fp8 products",
        example="parallelism: {data: 2}\nmemory: {zero_stage: 1}\nprecision: {fp8_parameters: "
        "true}",
    ),
    excludes(
        "E384",
        "precision.fp8_parameters",
        "ranks cannot gather their shards of weights in fp8",
        lambda scenario: not (_is_frozen(scenario) or scenario.can_train_fp8_weights),
        off=False,
        reads=("memory.zero_stage", "software.stack"),
        why="weights that are trained are gathered in fp8 only by Megatron-LM's distributed "
        "optimizer, Megatron-FSDP, and torchao with fully_shard",
        example="precision: {compute: fp8, fp8_parameters: true}\nsoftware: megatron_core",
    ),
    requires(
        "E385",
        "precision.fp8_parameters",
        needs={"precision.fp8_recipe": any_but("mxfp8")},
        off=False,
        where=lambda scenario: scenario.memory.zero_stage == 3 and not _is_frozen(scenario),
        why="mxfp8 scales rows and columns of a weight separately, so each pass would gather both; "
        "this is not simulated",
        example="parallelism: {data: 2}\n"
        "memory: {zero_stage: 3}\n"
        "precision: {compute: fp8, fp8_parameters: true, fp8_recipe: mxfp8}\n"
        "software: megatron_core",
    ),
    requires(
        "E387",
        "attention_backend",
        needs={"precision.compute": any_but("fp32")},
        off=any_but("fused"),
        why="fused attention kernels support only 16-bit numbers (FlashAttention, cuDNN)",
        example="precision: {compute: fp32}\nattention_backend: fused",
    ),
    requires(
        "E388",
        _STATES,
        needs={"memory.zero_stage": 1, "memory.offload_optimizer": False},
        why="narrow states need the precision-aware optimizer, which works only with the "
        "distributed optimizer (memory.zero_stage 1) on the GPU",
        example="precision: {exp_avg: bf16}",
        first=("memory.zero_stage", "memory.offload_optimizer"),
    ),
    against(
        "E389",
        lambda scenario: (
            (scenario.precision.compute == "fp32" and scenario.precision.narrow_states)
            or (
                scenario.precision.main_parameters == "remainder"
                and (scenario.precision.compute == "fp16" or scenario.precision.fp8_parameters)
            )
        ),
        "precision.compute is {scenario.precision.compute}, with fp8_parameters "
        "{scenario.precision.fp8_parameters}, while exp_avg, exp_avg_sq and main_parameters are "
        "{scenario.precision.exp_avg}, {scenario.precision.exp_avg_sq} and "
        "{scenario.precision.main_parameters}",
        why="narrow states need mixed precision, and a remainder needs parameters stored in bf16",
        example="parallelism: {data: 2}\n"
        "memory: {zero_stage: 1}\n"
        "precision: {compute: fp16, main_parameters: remainder}",
    ),
]


@rule(
    "E395",
    "torchao's fp8 is simulated only with the tensorwise recipe, in dense models, and with tensor "
    "parallelism only if it shards sequences too, as torchtitan does",
    "precision: {compute: fp8, fp8_recipe: blockwise}\nsoftware: torchtitan_compiled",
)
def _torchao_for_dense_layers(scenario: Scenario) -> str | None:
    if scenario.precision.compute != "fp8" or not scenario.uses_torchao:
        return None
    legal = {
        "precision.fp8_recipe": "tensorwise",
        "parallelism.sequence_parallel": scenario.parallelism.tensor > 1,
        "model.experts": None,
        "model.latent_attention": None,
    }
    for field, value in legal.items():
        if (written := attrgetter(field)(scenario)) != value:
            return (
                f"{field} is {shown(written)} while precision.compute is fp8 and software.stack is "
                f"{scenario.software.stack}"
            )
    return None


@rule(
    "E390",
    "the sizes of fp8 products must be multiples of 16, or of the recipe's scaling block; those of "
    "fp4 products must be multiples of 32, because kernels load 16 bytes",
    "model: {seq_length: 2049}\n"
    "batch: {micro: 1}\n"
    "precision: {compute: fp8}\n"
    "software: megatron_core",
)
def _fp8_gemm_sizes(scenario: Scenario) -> str | None:
    precision = scenario.precision
    recipe = "NVFP4" if precision.compute == "fp4" else precision.fp8_recipe
    for field, total, shards, divisors in _fp8_sizes(scenario):
        divisor, local = divisors[recipe], total // shards
        # Other rules refuse a size that its shards do not divide.
        if total % shards or local % divisor == 0:
            continue
        # Only the number of Mamba-2 heads can be left out.
        value = attrgetter(field)(scenario) or scenario.model.num_mamba_heads
        return (
            f"{field} is {value}, which gives each rank {local} rows or columns of an "
            f"{precision.compute} product, not a multiple of {divisor} as the recipe "
            f"{recipe} needs"
        )
    return None


class _Size(NamedTuple):
    """Rows or columns of an fp8 matrix product over all ranks, and the field that sets them.

    `shards` ranks divide them; `divisors` has the required divisor of a rank's share by recipe.
    """

    field: str
    total: int
    shards: int
    divisors: Mapping[str, int] = _DIVISORS


def _fp8_sizes(scenario: Scenario) -> Iterator[_Size]:
    """Yield the rows and columns of all fp8 matrix products."""
    if not scenario.precision.casts:
        return
    model, split = scenario.model, scenario.parallelism
    experts, tensor = model.experts, split.tensor
    yield _Size("model.hidden_size", model.hidden_size, 1)
    if model.has_dense_layers:
        yield _Size("model.ffn_hidden_size", model.ffn_hidden_size, tensor)
    if experts:
        size, shared = experts.ffn_hidden_size, experts.shared_ffn_hidden_size
        ranks = split.ranks_of_expert
        yield _Size("model.experts.ffn_hidden_size", size, ranks, _NOT_GATHERED)
        yield _Size("model.experts.shared_ffn_hidden_size", shared, tensor, _NOT_GATHERED)
    if model.latent_attention:
        yield from _latent_sizes(model.latent_attention, model.num_attention_heads, split)
    else:
        for heads in (model.num_attention_heads, 2 * model.num_query_groups):
            yield _Size("model.kv_channels", heads * model.kv_channels, tensor)
    if mamba := model.mamba:
        inner, states = model.num_mamba_heads * mamba.head_dim, mamba.num_groups * mamba.state_dim
        yield _Size("model.mamba.head_dim", inner, tensor)
        # The input projection makes the gate, x, B, C and a time step per head.
        columns = 2 * inner + 2 * states + model.num_mamba_heads
        yield _Size("model.mamba.num_heads", columns, tensor)
    tokens = model.seq_length * scenario.batch.micro
    ranks = split.context * (tensor if split.sequence_parallel else 1)
    yield _Size("model.seq_length", tokens, ranks)


def _latent_sizes(sizes: LatentAttention, heads: int, split: Parallelism) -> Iterator[_Size]:
    name, tensor = "model.latent_attention", split.tensor
    divisors = _DIVISORS if split.sequence_parallel else _NOT_GATHERED
    yield _Size(f"{name}.q_lora_rank", sizes.q_lora_rank or 0, 1, divisors)
    yield _Size(f"{name}.kv_lora_rank", sizes.kv_lora_rank, 1, divisors)
    rotated, plain, value = sizes.qk_pos_emb_head_dim, sizes.qk_head_dim, sizes.v_head_dim
    yield _Size(f"{name}.qk_pos_emb_head_dim", sizes.kv_lora_rank + rotated, 1, _NOT_GATHERED)
    yield _Size(f"{name}.v_head_dim", heads * value, tensor, _NOT_GATHERED)
    for columns in (sizes.query_size, plain + value):
        yield _Size(f"{name}.qk_head_dim", heads * columns, tensor, _NOT_GATHERED)


def products_rule(supported: Collection[str]) -> Rule:
    """Return the rule that the cluster's GPUs support the dtype of a scenario's products.

    Args:
        supported: bf16 and the data types of the profile's products (`gemm.by_dtype`).
    """

    def check(scenario: Scenario) -> str | None:
        precision, name = scenario.precision, scenario.precision.linear_product_type
        if name in supported:
            return _fp32_router_products(scenario, supported)
        compute = f"precision.compute is {precision.compute}"
        recipe = f" with precision.fp8_recipe {precision.fp8_recipe}"
        return (
            f"{compute}{recipe if precision.compute == 'fp8' else ''}, but the profile of "
            f"{scenario.cluster} has no entry for {name} products (gemm.by_dtype)"
        )

    return Rule(
        "E391",
        "the time of a product follows from the profile's entry for its dtype; A100 has no fp8 "
        "tensor cores, and mxfp8 and fp4 need Blackwell",
        "precision: {compute: fp8}\nsoftware: megatron_core",
        check,
    )


def _fp32_router_products(scenario: Scenario, supported: Collection[str]) -> str | None:
    """Return the violation of an fp32 router in a 16-bit model if the profile has no TF32 products.

    Transformer Engine multiplies the operands of its gradients in TF32 (`workload.blocks.router`).
    """
    experts = scenario.model.experts
    is_16_bit = scenario.precision.product_type == "bf16"
    if not experts or experts.router_dtype != "fp32" or not is_16_bit or "tf32" in supported:
        return None
    return (
        f"model.experts.router_dtype is fp32, but the profile of {scenario.cluster} has no entry "
        "for tf32 products (gemm.by_dtype), which both gradients of an fp32 router are"
    )


PRECISION_RULES += [
    at_most(
        "E498",
        ("precision.first_layers_bf16", "precision.last_layers_bf16"),
        "the layers of an average stage",
        lambda scenario: scenario.model.num_layers // scenario.parallelism.pipeline,
        where=lambda scenario: scenario.precision.compute == "fp8" and not scenario.uses_torchao,
        why="Megatron-LM keeps at most the layers of an average stage in bf16 at each end of a "
        "model in fp8 (TransformerConfig)",
        example="precision: {compute: fp8, fp8_recipe: tensorwise, last_layers_bf16: 1000}\n"
        "software: megatron_core",
    )
]


def _cannot_narrow_attention(scenario: Scenario) -> bool:
    """Whether no kernel casts attention's output for both of its readers."""
    policy = scenario.recompute
    recomputes = policy.strategy == "selective" and "core_attention" in policy.modules
    return (
        scenario.fp8_recipe != "blockwise"
        or scenario.facts.kernels.fp8_columns != "recast"
        or scenario.attention_backend != "fused"
        or scenario.parallelism.context > 1
        or recomputes
    )


def _cannot_narrow_activation(scenario: Scenario) -> bool:
    """Whether Megatron-LM cannot save the activation's input in fp8."""
    facts = scenario.facts
    return (
        scenario.model.activation != "swiglu"
        or not facts.kernels.fused_activation
        or facts.fp8_library != "transformer_engine"
        or scenario.precision.compute == "fp32"
    )


FP8_SAVING_RULES = Rules()
FP8_SAVING_RULES += [
    excludes(
        "E467",
        "precision.attention_output_bits",
        "no kernel casts attention's output for both of its readers",
        _cannot_narrow_attention,
        reads=(
            "precision.compute",
            "precision.fp8_recipe",
            "software.fp8_columns",
            "attention_backend",
            "parallelism.context",
            "recompute.strategy",
        ),
        why="DeepSeek-V3 casts the output of one fused attention kernel to 12 bits and to fp8 by "
        "rows, and the 12 bits to fp8 by columns for the projection's weight gradient",
        example="precision: {attention_output_bits: 12}",
    ),
    requires(
        "E468",
        "software.fp8_columns",
        needs={"parallelism.tensor": 1, "precision.fp8_recipe": "blockwise"},
        off=any_but("recast"),
        why="DeepSeek-V3 trains with blocks and without tensor parallelism; a gather of rows that "
        "are cast again by columns is not simulated",
        example="parallelism: {tensor: 2}\n"
        "precision: {compute: fp8, fp8_recipe: blockwise}\n"
        "cluster: h100_sxm\n"
        "software: {stack: megatron_core, fp8_columns: recast}",
    ),
    excludes(
        "E469",
        "precision.fp8_activation_inputs",
        "the activation is no fused SwiGLU of Megatron-Core",
        _cannot_narrow_activation,
        reads=("model.activation", "software.stack", "precision.compute"),
        why="Megatron-LM saves inputs of the activation in fp8 only for its fused SwiGLU",
        example="precision: {fp8_activation_inputs: true}",
    ),
]


# Rules of userbuffers: linear layers that pipeline their products with collectives.
#
# Sources: Megatron-LM's training/arguments.py and core/extensions/transformer_engine.py;
# Transformer Engine's pytorch/module/base.py (`initialize_ub`) and comm_gemm_overlap.cpp.

_NUM_SPLITS = 4

PRECISION_RULES += [
    requires(
        "E377",
        "overlap.userbuffers",
        needs={"parallelism.sequence_parallel": True},
        why="userbuffers pipeline the all-gathers and reduce-scatters of sequence parallelism "
        "(--tp-comm-overlap needs --sequence-parallel)",
        example="parallelism: {tensor: 8}\noverlap: {userbuffers: true, tensor_parallel: true}",
    ),
    requires(
        "E371",
        "overlap.userbuffers",
        needs={"overlap.tensor_parallel": True},
        why="userbuffers overlap the collectives of the backward pass too",
        example="parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: false}",
    ),
    against(
        "E372",
        lambda scenario: scenario.overlap.userbuffers and scenario.model.hidden_size % _NUM_SPLITS,
        f"model.hidden_size is {{scenario.model.hidden_size}}, not a multiple of "
        f"{_NUM_SPLITS}, while overlap.userbuffers is true",
        why=f"userbuffers split the product before a reduce-scatter into {_NUM_SPLITS} chunks of "
        f"hidden_size / {_NUM_SPLITS} columns",
        example="model: {hidden_size: 6146, num_attention_heads: 7, kv_channels: 128, "
        "ffn_hidden_size: 24584, vocab_size: 51205, seq_length: 2051}\n"
        "parallelism: {tensor: 7, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}",
    ),
    excludes(
        "E373",
        "overlap.userbuffers",
        "products have several scales per tensor",
        lambda scenario: scenario.precision.linear_product_type in ("fp8_block", "mxfp8", "nvfp4"),
        reads=("precision.compute", "precision.fp8_recipe"),
        why="userbuffers are simulated for recipes with one scale per tensor; Transformer Engine "
        "has none for the blockwise recipe and for fp4",
        example="parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}\n"
        "precision: {compute: fp8, fp8_recipe: blockwise}\n"
        "software: megatron_core",
    ),
    requires(
        "E374",
        "overlap.userbuffers",
        needs={"model.mtp_num_layers": 0, "model.latent_attention": None},
        why="latent attention and multi-token prediction have projections without userbuffers, "
        "which is not simulated",
        example="model: {mtp_num_layers: 1, position_embedding: rope}\n"
        "parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}",
    ),
    requires(
        "E376",
        "overlap.userbuffers",
        needs={"precision.compute": any_but("fp32")},
        why="Megatron-LM allocates userbuffers with 16-bit elements, which cannot hold fp32",
        example="parallelism: {tensor: 8, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}\n"
        "precision: {compute: fp32}",
    ),
]


def userbuffer_node_rule(nvlink_gpus: int) -> Rule:
    """Return the rule that NVLink, with `nvlink_gpus` GPUs, connects each tensor-parallel group."""

    def check(scenario: Scenario) -> str | None:
        """Return the violation of tensor-parallel groups that NVLink does not connect."""
        is_used = scenario.overlap.userbuffers
        if not is_used or scenario.mesh(nvlink_gpus).group("tp").inside_one_node:
            return None
        tensor = scenario.parallelism.tensor
        return (
            f"overlap.userbuffers is true while parallelism.tensor is {tensor}, but NVLink "
            f"connects only {nvlink_gpus} GPUs"
        )

    return Rule(
        "E375",
        "each rank writes to the userbuffers of its tensor-parallel peers over NVLink",
        "parallelism: {tensor: 16, sequence_parallel: true}\n"
        "overlap: {userbuffers: true, tensor_parallel: true}",
        check,
    )


@rule(
    "E381",
    "a fused cross entropy subtracts the maximum in the kernel of the exponentials",
    "memory: {in_place_cross_entropy: true}\nsoftware: {fused_cross_entropy: true}",
)
def _loss_keeps_fp32_logits(scenario: Scenario) -> str | None:
    field = "memory.in_place_cross_entropy"
    is_fused = scenario.facts.kernels.fused_cross_entropy
    if scenario.memory.in_place_cross_entropy is None or not is_fused:
        return None
    return f"{field} is set, but the software stack fuses the cross entropy"
