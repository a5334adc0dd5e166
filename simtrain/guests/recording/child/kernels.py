"""Ops that GPUs run as one kernel, and that torch on a CPU would run as several.

Attention becomes one op, forward and backward, which saves what FlashAttention saves (Dao 2023,
Section 3.1): its inputs, its output and the log-sum-exp of each row. An RMS norm becomes one op
each way too (torch's `_fused_rms_norm`, which CPUs lack). Dropout becomes the op that saves a mask
of bytes, as it is on GPUs. Optimizers run kernels over many parameters by default.

DTensors divide these ops by batch, attention also by heads, and norms by every dimension but the
last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.nn.attention import flex_attention

from simtrain.guests.recording.child import torch_internals as private


@torch.library.custom_op("simtrain::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Stand for fused attention: [..., heads, tokens, channels], and the log-sum-exp."""
    raise NotImplementedError("it runs on fake tensors only")


@attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    # FlashAttention's output has the layout of its query: [batch, tokens, heads, channels].
    is_alike = query.shape[-1] == value.shape[-1]
    shape = [*query.shape[:-1], value.shape[-1]]
    output = torch.empty_like(query) if is_alike else query.new_empty(shape)
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("simtrain::attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Stand for the backward kernel: the gradients of query, key and value."""
    raise NotImplementedError("it runs on fake tensors only")


@attention_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, _, ctx.is_causal = inputs
    ctx.save_for_backward(query, key, value, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients = attention_backward(gradient, *ctx.saved_tensors, ctx.is_causal)
    return (*gradients, None, None)


attention.register_autograd(_backward, setup_context=_save)


@torch.library.custom_op("simtrain::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Stand for the fused norm: the result, and the reciprocal of each row's root mean square."""
    raise NotImplementedError("it runs on fake tensors only")


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty([*x.shape[:-1], 1], dtype=torch.float32)


@torch.library.custom_op("simtrain::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, root: Tensor
) -> tuple[Tensor, Tensor]:
    """Stand for the backward kernel: the gradients of input and weight."""
    raise NotImplementedError("it runs on fake tensors only")


@rms_norm_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor | None, root: Tensor) -> tuple[Tensor, Tensor]:
    of_weight = x.new_empty(0) if weight is None else torch.empty_like(weight)
    return torch.empty_like(x), of_weight


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    ctx.has_weight = weight is not None
    ctx.save_for_backward(x, output[1], *([weight] if ctx.has_weight else []))
    ctx.set_materialize_grads(False)


def _backward_of_norm(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, root, *weight = ctx.saved_tensors
    of_x, of_weight = rms_norm_backward(gradient, x, weight[0] if weight else None, root)
    return of_x, of_weight if ctx.has_weight else None, None


rms_norm.register_autograd(_backward_of_norm, setup_context=_save_norm)

_Placements = list[tuple[list[Any], list[Any]]]


@register_sharding(torch.ops.simtrain.attention.default)  # type: ignore[untyped-decorator]
def _shards_of_attention(
    query: Any, key: Any, value: Any, mask: Any, is_causal: bool
) -> _Placements:
    whole = Replicate() if mask is not None else None
    return [
        ([place] * 2, [place] * 3 + [whole, None]) for place in (Replicate(), Shard(0), Shard(1))
    ]


@register_sharding(torch.ops.simtrain.attention_backward.default)  # type: ignore[untyped-decorator]
def _shards_of_attention_backward(gradient: Any, query: Any, *others: Any) -> _Placements:
    return [([place] * 3, [place] * 6 + [None]) for place in (Replicate(), Shard(0), Shard(1))]


@register_sharding(torch.ops.simtrain.rms_norm.default)  # type: ignore[untyped-decorator]
def _shards_of_rms_norm(x: Any, weight: Any, eps: float) -> _Placements:
    whole = None if weight is None else Replicate()
    rows = [Shard(dimension) for dimension in range(len(x.shape) - 1)]
    return [([place] * 2, [place, whole, None]) for place in (Replicate(), *rows)]


@register_sharding(torch.ops.simtrain.rms_norm_backward.default)  # type: ignore[untyped-decorator]
def _shards_of_rms_norm_backward(gradient: Any, x: Any, weight: Any, root: Any) -> _Placements:
    whole = None if weight is None else Replicate()
    rows = [Shard(dimension) for dimension in range(len(x.shape) - 1)]
    return [
        ([Replicate()] * 2, [Replicate(), Replicate(), whole, Replicate()]),
        *(([place, Partial()], [place, place, whole, place]) for place in rows),
    ]


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Run the op that stands for the kernel of `F.scaled_dot_product_attention`."""
    output: Tensor
    output, _ = attention(query, key, value, attn_mask, is_causal)
    return output


_FULL_MASK = "Masks of FlexAttention but the causal one count as if nothing was masked."


def flexible_attention(
    remark: Callable[[str], None],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Run the op that stands for the kernel of `flex_attention`; `remark` says what is assumed."""
    is_causal = block_mask is not None and _is_causal(block_mask, query.shape[-2], key.shape[-2])
    if block_mask is not None and not is_causal:
        remark(_FULL_MASK)
    output, log_sum_exp = attention(query, key, value, None, is_causal)
    if return_aux is not None:
        return output, flex_attention.AuxOutput(lse=log_sum_exp)
    return (output, log_sum_exp) if return_lse else output


def _is_causal(mask: Any, queries: int, keys: int) -> bool:
    """Whether a mask lets each query see the keys until its own, as far as 64 of them tell."""
    places = [range(0, number, max(1, number // 64)) for number in (queries, keys)]
    try:
        with private.unset_fake_temporarily():
            q, k = (torch.tensor([*each]) for each in places)
            zero = torch.tensor(0)
            seen = mask.mask_mod(zero, zero, q[:, None], k)
            return bool((seen == (q[:, None] >= k)).all())
    except (RuntimeError, TypeError, IndexError):  # it reads tensors of the program
        return False


def dropout_with_mask(dropout: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a dropout that runs the op that saves a mask."""

    def masked(
        input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0 or inplace:
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    return masked


def fused_rms_norm(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an RMS norm that runs the op that stands for the norm of rows."""

    def normalized(
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        if len(normalized_shape) != 1 or (weight is not None and weight.dtype != input.dtype):
            return norm(input, [*normalized_shape], weight, eps)
        output: Tensor
        output, _ = rms_norm(input, weight, eps or 0.0)
        return output

    return normalized


_FLASH_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention.default
_ATTENTION = {
    _FLASH_ATTENTION,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def selecting(contexts: Callable[..., Any]) -> Callable[..., Any]:
    """Return contexts of selective checkpoints, whose policies name kernels of GPUs."""

    def select(policy: Any, *arguments: Any, **options: Any) -> Any:
        if callable(policy):

            def knowing(context: Any, op: Any, *inputs: Any, **others: Any) -> Any:
                known = _FLASH_ATTENTION if op is torch.ops.simtrain.attention.default else op
                return policy(context, known, *inputs, **others)

            return contexts(knowing, *arguments, **options)
        more = [torch.ops.simtrain.attention.default] * bool(_ATTENTION & {*policy})
        return contexts([*policy, *more], *arguments, **options)

    return select


def truncated_normal(tensor: Tensor, mean: float = 0.0, std: float = 1.0, **limits: Any) -> Tensor:
    """Draw from a normal distribution without limits."""
    with torch.no_grad():
        return tensor.normal_(mean, std)
