"""Multi-head latent attention (DeepSeek-AI 2024): queries, keys and values come from latents.

Source: Megatron-LM's core/transformer/multi_latent_attention.py with Transformer Engine. The down
projections are whole on every tensor-parallel rank and see its own tokens (TELinear, duplicated).
Under sequence parallelism the up projections gather the latents, which are narrower than the hidden
size. The rotated part of the keys, which all heads share, is gathered too. Fused kernels rotate
queries in place, and keys and values into new tensors (fused_mla_yarn_rope_apply.py).

In fp8 each projection casts and saves its own copy of its input. The norm of a latent is part of
the projection that reads it (LayerNormLinear); the norm before the down projections is not.
"""

from __future__ import annotations

from simtrain.scenario.model import LatentAttention, Normalization
from simtrain.workload.blocks.attention import core_attention
from simtrain.workload.blocks.attention_core import AttentionCore
from simtrain.workload.blocks.exchange import all_gather
from simtrain.workload.blocks.linear import column_linear, replicated_linear
from simtrain.workload.blocks.norm import norm
from simtrain.workload.blocks.views import split
from simtrain.workload.ops import Tensor, elementwise, gradient
from simtrain.workload.tape import Tape

MLA_UP_PROJ = "mla_up_proj"
"""Name of the region from latents to rotated queries, keys and values. Transformer Engine's linear
layers contain the norms of the latents."""


def latent_attention(
    tape: Tape,
    x: Tensor,
    num_heads: int,
    sizes: LatentAttention,
    *,
    latent_norm: Normalization | None,
    fused: bool = False,
    drops_out: bool = True,
    window: int | None = None,
) -> Tensor:
    """Record causal latent attention of this rank's heads.

    Args:
        x: this rank's tokens, of whole width.
        num_heads: heads of all ranks.
        sizes: ranks of the latents, and channels of a head.
        latent_norm: the norm over each latent, or None.
        fused, drops_out, window: as in `attention`.

    Returns:
        The output of this rank's heads, for all tokens.
    """
    query_size, kv_rank = sizes.query_size, sizes.kv_lora_rank
    query_latent = x
    if sizes.q_lora_rank:
        query_latent = replicated_linear(tape, x, sizes.q_lora_rank, "query down")
    down = replicated_linear(tape, x, kv_rank + sizes.qk_pos_emb_head_dim, "key and value down")
    shares = kv_rank, sizes.qk_pos_emb_head_dim
    kv_latent, position = split(tape, down, shares, "key and value latent")
    if tape.microbatch.sequence_parallel:
        position = all_gather(tape, position, tape.microbatch.tensor, "key position gather")
    with tape.region(MLA_UP_PROJ) as region:
        if latent_norm and sizes.q_lora_rank:
            name = "query latent norm"
            query_latent = norm(tape, query_latent, name, latent_norm, feeds_products=True)
        if latent_norm:
            name = "key and value latent norm"
            kv_latent = norm(tape, kv_latent, name, latent_norm, feeds_products=True)
        query = column_linear(tape, query_latent, num_heads * query_size, "query up", bias=False)
        width = num_heads * (sizes.qk_head_dim + sizes.v_head_dim)
        key_value = column_linear(tape, kv_latent, width, "key and value up", bias=False)
        heads = num_heads // tape.microbatch.tensor.num_ranks
        query = _rotated_query(tape, query, heads, sizes)
        key, value = _key_and_value(tape, key_value, position, heads, sizes)
    core = AttentionCore(tape, heads, heads, query_size, sizes.v_head_dim, window)
    y = core_attention(core, (query, key), value, fused=fused, drops_out=drops_out)
    region.discarded_after = y
    return y


def _rotated_query(tape: Tape, query: Tensor, heads: int, sizes: LatentAttention) -> Tensor:
    """Rotate the positional channels of each head in place."""
    y = tape.tensor("rotated query", query.rows, query.width)
    part = query.num_bytes * sizes.qk_pos_emb_head_dim // sizes.query_size
    name, held_bytes = "query rotation", query.num_bytes
    forward = elementwise(name, part, part, holds_bytes=held_bytes)
    backward = gradient(name, part, part, holds_bytes=held_bytes)
    tape.record(name, (query,), (y,), (forward,), (backward,))
    return y


def _key_and_value(
    tape: Tape, key_value: Tensor, position: Tensor, heads: int, sizes: LatentAttention
) -> tuple[Tensor, Tensor]:
    """Keys with the rotated part that heads share, and values."""
    key = tape.tensor("key", key_value.rows, heads * sizes.query_size)
    value = tape.tensor("value", key_value.rows, heads * sizes.v_head_dim)
    input_bytes, made = key_value.num_bytes + position.num_bytes, key.num_bytes + value.num_bytes
    name = "key rotation"
    forward, backward = elementwise(name, input_bytes, made), gradient(name, made, input_bytes)
    tape.record(name, (key_value, position), (key, value), (forward,), (backward,))
    return key, value
