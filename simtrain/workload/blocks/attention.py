"""Self-attention (paper, Figure 3): its core, its head norms and rotations, and latents.

Unfused, it is QKᵀ, softmax, softmax dropout and attention over V, with the bytes of Megatron-LM's
kernels: its causal softmax (`ScaledUpperTriangMaskedSoftmax`) reads only the lower triangle of the
scores and writes all of them. Fused, it is one kernel, which saves no scores.
"""

from __future__ import annotations

from simtrain.base.values import replace
from simtrain.errors import InputError
from simtrain.scenario.model import LatentAttention, Normalization
from simtrain.workload.blocks.context import AttentionCore, context_attention
from simtrain.workload.blocks.elementwise import (
    MASK_BYTES,
    dropout,
    join_views,
    norm,
    norm_parameters,
    rms_norm_kernels,
    rotation_kernels,
    softmax_kernels,
    split,
)
from simtrain.workload.blocks.linear import all_gather, column_linear, replicated_linear
from simtrain.workload.fp8 import narrow_copy
from simtrain.workload.ops import Op, Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import KernelFamily


def softmax_of_scores(
    core: AttentionCore, scores: Tensor, read_bytes: int, backward_bytes: int, *, drops_out: bool
) -> Tensor:
    """Record the softmax of all scores (queries times keys), and its dropout.

    The fused kernel reads `read_bytes` forward and `backward_bytes` backward. A software stack
    without it masks the scores first, with a mask of one byte per score of a sequence.
    """
    tape, size = core.tape, scores.num_bytes
    y = tape.tensor("softmax output", scores.rows, scores.width)
    if tape.microbatch.kernels.fused_softmax:
        family, held_bytes = KernelFamily.SOFTMAX, 2 * size
        sizes, back = (read_bytes, size), (backward_bytes, size)
        forward: Ops = (
            elementwise("softmax", *sizes, saves=(y,), holds_bytes=held_bytes, family=family),
        )
        backward: Ops = (
            gradient("softmax", *back, reads=(y,), holds_bytes=held_bytes, family=family),
        )
    else:
        mask_bytes = scores.rows // core.heads * scores.width * MASK_BYTES
        separate = tape.microbatch.kernels.separate_masking
        forward, backward = softmax_kernels(scores, y, mask_bytes, separate_masking=separate)
    tape.record("softmax", (scores,), (y,), forward, backward)
    return dropout(tape, y, "softmax dropout", KernelFamily.DROPOUT) if drops_out else y


# Norms and rotation of query heads and key heads, before attention.
#
# Each is one kernel on the queries and one on the keys in each direction, or several eager kernels.
# Their outputs are new tensors; values stay in the output of the QKV product.


def head_norms(
    tape: Tape, query_key: tuple[Tensor, ...], heads: int, groups: int, kind: Normalization
) -> Tensor:
    """Record norms over the channels of each head, with one weight for queries and one for keys.

    `query_key` is one tensor, or queries and keys. The norms save their input (Megatron-LM's
    q_layernorm and k_layernorm). Each rank has its own heads,
    so the gradients of the weights are partial sums even without sequence parallelism. Their
    reduction, two vectors per layer and iteration, is counted only under sequence parallelism.
    """
    rows, channels = query_key[0].rows, _width(query_key) // (heads + groups)
    weight = Parameter(norm_parameters(kind, channels), is_whole=True)
    family = KernelFamily(kind)
    kernels = _fused_kernels(query_key, heads, groups, "norm", family, saves=True)
    if kind == "rms_norm" and not tape.microbatch.kernels.fused_rms_norm:
        kernels = [
            rms_norm_kernels(tape, tape.tensor(part, rows * number, channels), name)
            for part, number, name in (("query", heads, "query norm"), ("key", groups, "key norm"))
        ]
    return _on_both(tape, query_key, "norm", kernels, parameters=(weight, weight))


def rotary(tape: Tape, query_key: tuple[Tensor, ...], heads: int, groups: int) -> Tensor:
    """Record the rotary position embedding (Su et al. 2021), which saves nothing.

    `query_key` is one tensor, or queries and keys. The table of sines and cosines, s rows for all
    sequences and heads, is not counted.
    """
    kernels = _fused_kernels(query_key, heads, groups, "rotation", KernelFamily.ROTARY)
    if not tape.microbatch.kernels.fused_rotary:
        how = {"is_complex": tape.microbatch.kernels.complex_rotary}
        sizes = _sizes(query_key, heads, groups)
        kernels = [
            rotation_kernels(f"{part} rotation", size, **how) for part, size in sizes.items()
        ]
    return _on_both(tape, query_key, "rotation", kernels)


def _width(query_key: tuple[Tensor, ...]) -> int:
    return sum(tensor.width for tensor in query_key)


def _sizes(query_key: tuple[Tensor, ...], heads: int, groups: int) -> dict[str, int]:
    size = sum(tensor.num_bytes for tensor in query_key)
    return {"query": size * heads // (heads + groups), "key": size * groups // (heads + groups)}


def _fused_kernels(
    query_key: tuple[Tensor, ...],
    heads: int,
    groups: int,
    name: str,
    family: KernelFamily,
    *,
    saves: bool = False,
) -> list[tuple[Ops, Ops]]:
    kernels: list[tuple[Ops, Ops]] = []
    inputs = query_key[:1], query_key[-1:]
    for (part, size), x in zip(_sizes(query_key, heads, groups).items(), inputs, strict=True):
        saved = x if saves else ()
        forward = elementwise(f"{part} {name}", size, size, saves=saved, family=family)
        read_bytes = (1 + saves) * size
        backward = gradient(f"{part} {name}", read_bytes, size, reads=saved, family=family)
        kernels.append(((forward,), (backward,)))
    return kernels


def _on_both(
    tape: Tape,
    query_key: tuple[Tensor, ...],
    name: str,
    kernels: list[tuple[Ops, Ops]],
    parameters: tuple[Parameter, ...] = (),
) -> Tensor:
    y = tape.tensor(f"query and key {name} output", query_key[0].rows, _width(query_key))
    (query, query_back), (key, key_back) = kernels
    forward, backward = query + key, query_back + key_back
    label = f"query and key {name}"
    return tape.record(label, query_key, y, forward, backward, parameters=parameters)


_FULL_BITS = 16
CORE_ATTENTION = "core_attention"
"""Name of the region of the core."""


# Models differ in these options, and own layers of users write them as keywords.
def attention(
    tape: Tape,
    qkv: Tensor | tuple[Tensor, Tensor, Tensor],
    head_size: int,
    num_groups: int | None = None,
    *,
    fused: bool = False,
    drops_out: bool = True,
    head_norm: Normalization | None = None,
    rope: bool = False,
    window: int | None = None,
) -> Tensor:
    """Record causal self-attention of this rank's heads; return its output, as wide as the queries.

    Args:
        qkv: all tokens; queries, keys and values side by side in one tensor, or three tensors.
        num_groups: key heads and value heads on this rank; None for as many as query heads.
        fused: one kernel instead of five.
        head_norm: the norm over the channels of each query head and key head; None without.
        window: tokens that a query attends to, itself included; None for all. The unfused kernels
            compute all scores in any case.
    """
    parts = qkv if isinstance(qkv, tuple) else (qkv,)
    heads = sum(part.width for part in parts) // head_size
    groups = heads // 3 if num_groups is None else num_groups
    heads -= 2 * groups
    if isinstance(qkv, tuple):
        *query_key, value = qkv
    else:
        joined = tape.tensor("query and key", qkv.rows, (heads + groups) * head_size)
        value = tape.tensor("value", qkv.rows, groups * head_size, storage=joined.storage)
        join_views(tape, qkv, (joined, value), "query, key and value")
        query_key = [joined]
    if head_norm:
        query_key = [head_norms(tape, tuple(query_key), heads, groups, head_norm)]
    if rope:
        query_key = [rotary(tape, tuple(query_key), heads, groups)]
    core = AttentionCore(tape, heads, groups, head_size, head_size, window)
    return core_attention(core, tuple(query_key), value, fused=fused, drops_out=drops_out)


def core_attention(
    core: AttentionCore,
    query_key: tuple[Tensor, ...],
    value: Tensor,
    *,
    fused: bool,
    drops_out: bool,
) -> Tensor:
    """Record the core of attention, from queries and keys in one tensor or in two.

    Raises:
        InputError: context parallelism with unfused kernels, or an exchange of keys with
            a window (E508).
    """
    context, kernels = core.tape.microbatch.context, core.tape.microbatch.kernels
    with core.tape.region(CORE_ATTENTION):
        if fused and core.groups != core.heads and kernels.repeated_keys:
            core, query_key, value = _repeated(core, query_key, value)
        if context:
            if not fused:
                message = "unfused attention cannot run under context parallelism"
                raise InputError.of("E508", message, fix="call attention(..., fused=True)")
            return context_attention(core, context, (*query_key, value), _fused)
        if fused:
            return _fused(core, query_key, value)
        return _unfused(core, query_key, value, drops_out=drops_out)


def _fused(core: AttentionCore, query_key: tuple[Tensor, ...], value: Tensor) -> Tensor:
    """Record one kernel. Its backward kernel reads its output, which the projection saves too.

    An output of fewer bits is cast in the forward pass, with the fp8 copy by rows for the
    projection, and cast back before the backward kernel.
    """
    tape, name = core.tape, "fused attention"
    output, log_sum_exp = core.output(), core.log_sum_exp()
    inputs, bits = (*query_key, value), tape.microbatch.attention_output_bits
    is_narrow = bits < _FULL_BITS and tape.microbatch.fp8_recipe
    narrow = narrow_copy(tape, output, bits, writes_rows=True) if is_narrow else None
    saved = *inputs, *(() if narrow else (output,)), log_sum_exp
    work = core.kernel(core.seq_length, core.seq_length, is_backward=False)
    held_bytes = work.tensors_bytes + work.log_sum_exp_bytes
    forward = Op(name, work, Phase.FORWARD, saved, holds_bytes=held_bytes)
    work = core.kernel(core.seq_length, core.seq_length, is_backward=True)
    held_bytes = 2 * work.tensors_bytes + work.workspace_bytes + work.log_sum_exp_bytes
    phase = Phase.INPUT_GRADIENT
    backward = Op(f"{name} gradient", work, phase, reads=saved, holds_bytes=held_bytes)
    casts: Ops = ()
    casts_back: Ops = ()
    if narrow:
        tape.fp8_copies[output] = narrow.tensors
        casts, casts_back = (narrow.cast.replace(saves=narrow.tensors),), (narrow.cast_back,)
    return tape.record(name, inputs, output, (forward, *casts), (*casts_back, backward))


def _repeated(
    core: AttentionCore, query_key: tuple[Tensor, ...], value: Tensor
) -> tuple[AttentionCore, tuple[Tensor, ...], Tensor]:
    """Record kernels that repeat keys and values for each query head; nothing is saved for them."""
    keys, values = core.repeated("keys", core.head_size), core.repeated("values", core.value_size)
    assert keys and values, "there are fewer keys than queries"
    queries = core.tape.tensor("queries", keys.rows, core.heads * core.head_size)
    forward = core.repeat(keys), core.repeat(values)
    backward = core.repeat_gradient(values), core.repeat_gradient(keys)
    inputs, outputs = (*query_key, value), (queries, keys, values)
    core.tape.record("repeated keys and values", inputs, outputs, forward, backward)
    return replace(core, groups=core.heads), (queries, keys), values


def _unfused(
    core: AttentionCore, query_key: tuple[Tensor, ...], value: Tensor, *, drops_out: bool
) -> Tensor:
    """Record separate kernels, which save the scores.

    The causal softmax reads only the lower triangle; its backward kernel overwrites its input.
    """
    scores = _query_key_product(core, query_key)
    size = scores.num_bytes
    probabilities = softmax_of_scores(core, scores, size // 2, size, drops_out=drops_out)
    return _over_value(core, probabilities, value)


def _query_key_product(core: AttentionCore, query_key: tuple[Tensor, ...]) -> Tensor:
    """Record QKᵀ. `baddbmm` requires an addend as large as the scores, and ignores it."""
    s, d = core.tape.microbatch.seq_length, core.head_size
    rows = core.tape.microbatch.sequences * core.heads * s
    scores, keys = core.tape.tensor("scores", rows, s), core.repeated("keys", d)
    by_head = _copies_by_head(core, query_key)
    saved = (*query_key, keys) if keys else query_key
    product = core.product("QKᵀ", (s, s, d), Phase.FORWARD, saves=saved)
    forward = [*by_head, product.replace(buffer_bytes=scores.num_bytes)]
    phase = Phase.INPUT_GRADIENT
    backward = [
        core.product("QKᵀ query gradient", (s, d, s), phase, reads=saved),
        core.product("QKᵀ key gradient", (s, d, s), phase, reads=query_key),
    ]
    if keys:
        forward.insert(len(by_head), core.repeat(keys))
        backward.append(core.repeat_gradient(keys))
    return core.tape.record("QKᵀ", query_key, scores, forward, backward)


def _copies_by_head(core: AttentionCore, tensors: tuple[Tensor, ...]) -> Ops:
    """Return the copies of permuted queries, keys or values that a batched product needs.

    The copies are saved in place of the originals. Megatron-LM since 2020 multiplies without them,
    because its tensors begin with the sequence. Their gradients are views.
    """
    if not core.tape.microbatch.kernels.separate_masking:
        return ()
    return tuple(elementwise(f"{x.name} by head", x.num_bytes, x.num_bytes) for x in tensors)


def _over_value(core: AttentionCore, probabilities: Tensor, value: Tensor) -> Tensor:
    """Record attention over V and the merge of heads.

    If values are repeated, the unrepeated ones stay too, because they are views of the storage of
    the queries.
    """
    output, values = core.output(), core.repeated("values", core.value_size)
    s, d = core.tape.microbatch.seq_length, core.value_size
    operand, phase = values or value, Phase.INPUT_GRADIENT
    saves, name = (operand, probabilities), "attention over V"
    forward = [
        *_copies_by_head(core, (value,)),
        core.product(name, (s, d, s), Phase.FORWARD, saves=saves),
        elementwise("merge heads", output.num_bytes, output.num_bytes),
    ]
    backward = [
        core.product(f"{name} scores gradient", (s, s, d), phase, reads=(operand,)),
        core.product(f"{name} value gradient", (s, d, s), phase, reads=(probabilities,)),
    ]
    if values:
        forward.insert(0, core.repeat(values, saves=(value,)))
        backward.append(core.repeat_gradient(values, reads=(value,)))
    return core.tape.record(name, (probabilities, value), output, forward, backward)


# Multi-head latent attention (DeepSeek-AI 2024): queries, keys and values come from latents.
#
# Source: Megatron-LM's core/transformer/multi_latent_attention.py with Transformer Engine. The down
# projections are whole on every tensor-parallel rank and see its own tokens (TELinear, duplicated).
# Under sequence parallelism the up projections gather the latents, which are narrower than the
# hidden size. The rotated part of the keys, which all heads share, is gathered too. Fused kernels
# rotate queries in place, and keys and values into new tensors (fused_mla_yarn_rope_apply.py).
#
# In fp8 each projection casts and saves its own copy of its input. The norm of a latent is part of
# the projection that reads it (LayerNormLinear); the norm before the down projections is not.

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
    """Record causal latent attention of this rank's heads; return their output for all tokens.

    Args:
        x: this rank's tokens, of whole width.
        num_heads: heads of all ranks.
        latent_norm: the norm over each latent, or None.
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
    y = tape.tensor("rotated query", query.rows, query.width)
    part = query.num_bytes * sizes.qk_pos_emb_head_dim // sizes.query_size
    name, held_bytes = "query rotation", query.num_bytes
    forward = elementwise(name, part, part, holds_bytes=held_bytes)
    backward = gradient(name, part, part, holds_bytes=held_bytes)
    return tape.record(name, (query,), y, (forward,), (backward,))


def _key_and_value(
    tape: Tape, key_value: Tensor, position: Tensor, heads: int, sizes: LatentAttention
) -> tuple[Tensor, Tensor]:
    key = tape.tensor("key", key_value.rows, heads * sizes.query_size)
    value = tape.tensor("value", key_value.rows, heads * sizes.v_head_dim)
    input_bytes, made = key_value.num_bytes + position.num_bytes, key.num_bytes + value.num_bytes
    name = "key rotation"
    forward, backward = elementwise(name, input_bytes, made), gradient(name, made, input_bytes)
    tape.record(name, (key_value, position), (key, value), (forward,), (backward,))
    return key, value
