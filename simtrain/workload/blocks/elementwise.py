"""Blocks without products: views, kernels of eager PyTorch, norms, activations and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.linear import bias_gradient
from simtrain.workload.fp8 import casts, fp8_tensors, narrow_copy, recipe_of, transpose
from simtrain.workload.ops import Op, Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.recompute import CHECKPOINTED_NORM
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import FP32_BYTES, KernelFamily


def split(tape: Tape, x: Tensor, shares: tuple[int, ...], name: str) -> tuple[Tensor, ...]:
    """Record views of consecutive columns. A backward kernel concatenates their gradients.

    Args:
        shares: widths of the views, or numbers proportional to them: 3h and 2f for a tensor of
            width (3h + 2f) / t.
        name: name of the views and of the kernel.
    """
    widths = [x.width * share // sum(shares) for share in shares]
    views = tuple(tape.tensor(f"{name} {i}", x.rows, width) for i, width in enumerate(widths))
    join_views(tape, x, views, name)
    return views


def join_views(tape: Tape, x: Tensor, views: tuple[Tensor, ...], name: str) -> None:
    """Record that `views` are views of `x`. A backward kernel concatenates their gradients."""
    size = x.num_bytes
    join = elementwise(f"join {name} gradients", size, size, Phase.INPUT_GRADIENT)
    tape.record(name, (x,), views, (), (join,))


def concat(tape: Tape, parts: tuple[Tensor, ...], name: str) -> Tensor:
    """Record the concatenation of tensors. Their gradients are views of its gradient."""
    return _joined(tape, parts, tape.tensor(name, parts[0].rows, sum(part.width for part in parts)))


def split_rows(tape: Tape, x: Tensor, number: int, name: str) -> tuple[Tensor, ...]:
    """Record views of `number` equal parts of the rows; a kernel concatenates their gradients."""
    rows, place = x.rows // number, x.storage
    views = tuple(tape.tensor(f"{name} {i}", rows, x.width, None, place) for i in range(number))
    join_views(tape, x, views, name)
    return views


def concat_rows(tape: Tape, parts: tuple[Tensor, ...], name: str) -> Tensor:
    """Record the concatenation of tensors of equal width, row after row."""
    return _joined(tape, parts, tape.tensor(name, sum(part.rows for part in parts), parts[0].width))


def copy(tape: Tape, x: Tensor, name: str) -> Tensor:
    """Record a copy of a tensor, which stays allocated. Both share one gradient."""
    y = tape.tensor(name, x.rows, x.width)
    op = elementwise(name, x.num_bytes, y.num_bytes, saves=(x,))
    return tape.record(name, (x,), y, (op,))


def _joined(tape: Tape, parts: tuple[Tensor, ...], y: Tensor) -> Tensor:
    return tape.record(y.name, parts, y, (elementwise(f"join {y.name}", y.num_bytes, y.num_bytes),))


# Kernels of eager PyTorch, for software stacks without fused kernels.
#
# Sources: Hugging Face's transformers (LlamaRMSNorm, apply_rotary_pos_emb, LlamaMLP), Megatron-LM's
# FusedScaleMaskSoftmax.forward_torch_softmax, and for the backward pass PyTorch's derivatives.yaml.
# Kernels on one number per row are included, because the host launches them too.


def rms_norm_kernels(tape: Tape, x: Tensor, name: str) -> tuple[Ops, Ops]:
    """Return the kernels of an RMS norm; it saves an fp32 copy of its input."""
    size, wide, row = x.num_bytes, x.rows * x.width * FP32_BYTES, x.rows * FP32_BYTES
    weight = x.width * x.element_bytes
    copy = tape.tensor(f"{name} input in fp32", x.rows, x.width, FP32_BYTES)
    root = tape.tensor(f"{name} inverse root", x.rows, 1, FP32_BYTES)
    normal = tape.tensor(f"{name} normalized", x.rows, x.width)
    forward = (
        elementwise(f"{name} to fp32", size, wide, saves=(copy,)),
        elementwise(f"{name} square", wide, wide),
        elementwise(f"{name} mean", wide, row),
        elementwise(f"{name} epsilon", row, row),
        elementwise(f"{name} inverse root", row, row, saves=(root,)),
        elementwise(f"{name} scale", wide + row, wide),
        elementwise(f"{name} from fp32", wide, size, saves=(normal,)),
        elementwise(f"{name} weight", size, size),
    )
    # The copy has two gradients; the first waits in fp32 for the second.
    backward = (
        _gradient(f"{name} weight product", 2 * size, size, reads=(normal,)),
        _gradient(f"{name} weight sum", size, weight, wait_bytes=size),
        _gradient(f"{name} weight", size, size),
        _gradient(f"{name} to fp32", size, wide),
        _gradient(f"{name} scale", wide + row, wide, reads=(root,)),
        _gradient(f"{name} root product", 2 * wide, wide, reads=(copy,), wait_bytes=wide),
        _gradient(f"{name} root sum", wide, row, wait_bytes=wide),
        _gradient(f"{name} root cube", row, row, reads=(root,), wait_bytes=wide),
        _gradient(f"{name} root half", row, row, wait_bytes=wide),
        _gradient(f"{name} root", 2 * row, row, wait_bytes=wide),
        _gradient(f"{name} mean", row, wide, wait_bytes=wide),
        _gradient(f"{name} square power", wide, wide, reads=(copy,), wait_bytes=2 * wide),
        _gradient(f"{name} square double", wide, wide, wait_bytes=2 * wide),
        _gradient(f"{name} square", 2 * wide, wide, wait_bytes=wide),
        _gradient(f"{name} sum", 2 * wide, wide),
        _gradient(f"{name} from fp32", wide, size),
    )
    return forward, backward


def rotation_kernels(name: str, size: int, *, is_complex: bool) -> tuple[Ops, Ops]:
    """Return the kernels of x cos + rotate_half(x) sin, of `size` bytes; tables are not counted.

    Or of a product of complex numbers in fp32 (torchtitan, models/llama3, `apply_rotary_emb`).
    """
    half, whole, wide = (size // 2, size // 2), (size, size), 2 * size
    negate, join, add = ("negate half", *half), ("join halves", *whole), ("sum", 2 * size, size)
    sine, cosine = ("sine", *whole), ("cosine", *whole)
    # Backward: both products, then the inverse of rotate_half.
    forward, backward = (negate, join, sine, cosine, add), (cosine, sine, negate, join, add)
    product = ("to fp32", size, wide), ("product", wide, wide), ("from fp32", wide, size)

    def kernels(steps: Sequence[tuple[str, int, int]], phase: Phase) -> Ops:
        moved = product if is_complex else steps
        return tuple(elementwise(f"{name} {of}", read, to, phase) for of, read, to in moved)

    return kernels(forward, Phase.FORWARD), kernels(backward, Phase.INPUT_GRADIENT)


def softmax_kernels(
    scores: Tensor, y: Tensor, mask_bytes: int, *, separate_masking: bool
) -> tuple[Ops, Ops]:
    """Return the forward and backward kernels of a causal mask and a softmax of all scores.

    With `separate_masking`, scores are divided, multiplied by the mask and lowered where it is 0.
    The last step is a sum, which has no backward kernel.
    """
    size = scores.num_bytes
    forward = [
        elementwise("softmax mask", size + mask_bytes, size, holds_bytes=size),
        elementwise("softmax", size, size, saves=(y,)),
    ]
    backward = [
        _gradient("softmax", 2 * size, size, reads=(y,)),
        _gradient("softmax mask", size + mask_bytes, size),
    ]
    if separate_masking:
        forward.insert(0, elementwise("scores division", size, size))
        forward.insert(2, elementwise("softmax mask sum", size + mask_bytes, size))
        backward.append(_gradient("scores division", size, size))
    return tuple(forward), tuple(backward)


def activation_kernels(
    tape: Tape,
    inputs: tuple[Tensor, ...],
    y: Tensor,
    name: str,
    *,
    gated: bool,
    biased: bool,
    squared: bool,
) -> tuple[Ops, Ops]:
    """Return the kernels of a bias, an activation, and a gate or a square, one each per pass.

    `inputs` is one tensor, or the gate and the values.
    """
    whole, part = sum(x.num_bytes for x in inputs), y.num_bytes
    inner = tape.tensor(f"{name} before its product", y.rows, y.width)
    kept = () if biased else inputs
    forward = []
    if biased:
        forward = [elementwise(f"{name} bias", whole, whole, saves=() if squared else inputs)]
    if gated:
        forward += [
            elementwise(f"{name} of gate", part, part, saves=(*kept, inner)),
            elementwise(f"{name} product", 2 * part, part),
        ]
        backward = [
            _gradient(f"{name} values", 2 * part, part, reads=(inner,)),
            _gradient(f"{name} product", 2 * part, part, wait_bytes=part),
            _gradient(f"{name} of gate", 2 * part, part, reads=inputs, wait_bytes=part),
        ]
        if len(inputs) == 1:
            backward.append(_gradient(f"{name} join", whole, whole))
    elif squared:
        # Both kernels of a squared ReLU save the output of the first.
        forward += [
            elementwise(f"{name} ReLU", part, part, saves=(inner,)),
            elementwise(f"{name} square", part, part),
        ]
        backward = [
            _gradient(f"{name} power", part, part, wait_bytes=part),
            _gradient(f"{name} double", part, part, wait_bytes=part),
            _gradient(f"{name} square", 2 * part, part),
            _gradient(f"{name} ReLU", 2 * part, part, reads=(inner,)),
        ]
    else:
        forward.append(elementwise(name, part, part, saves=kept))
        backward = [_gradient(name, 2 * part, part, reads=inputs)]
    return tuple(forward), tuple(backward)


def _gradient(
    name: str,
    read_bytes: int,
    write_bytes: int,
    *,
    reads: tuple[Tensor, ...] = (),
    wait_bytes: int = 0,
) -> Op:
    held_bytes = read_bytes + write_bytes + wait_bytes
    return gradient(name, read_bytes, write_bytes, reads=reads, holds_bytes=held_bytes)


# Layer norms and RMS norms, over this rank's tokens.

_PARAMETERS = {"layer_norm": 2, "rms_norm": 1}
"""Number of parameter vectors: a weight, and for layer norm a bias."""


def norm(
    tape: Tape,
    x: Tensor,
    name: str,
    kind: Normalization = "layer_norm",
    *,
    feeds_products: bool = False,
    is_checkpointed: bool = True,
) -> Tensor:
    """Record a norm, which saves its input.

    Args:
        x: this rank's tokens.
        name: name of its kernels.
        kind: layer norm or RMS norm.
        feeds_products: only linear layers read the output. In fp8, the norm then casts its output
            (Transformer Engine's LayerNormLinear).
        is_checkpointed: it runs again in the backward pass if the software stack checkpoints norms.
    """
    is_region = is_checkpointed and tape.microbatch.kernels.checkpointed_fp32_norms
    with tape.region(CHECKPOINTED_NORM) if is_region else nullcontext():
        return _norm(tape, x, name, kind, feeds_products=feeds_products)


def _norm(tape: Tape, x: Tensor, name: str, kind: Normalization, *, feeds_products: bool) -> Tensor:
    kernels = tape.microbatch.kernels
    is_fused = kind == "layer_norm" or kernels.fused_rms_norm
    if is_fused and kernels.checkpointed_fp32_norms and x.element_bytes < FP32_BYTES:
        x = _in_fp32(tape, x, name)
    y, family = tape.tensor(f"{name} output", x.rows, x.width), KernelFamily(kind)
    weight = Parameter(norm_parameters(kind, x.width), is_whole=True)
    size, read = y.num_bytes, x.num_bytes
    forward: Ops = (elementwise(name, read, size, saves=(x,), family=family),)
    backward: Ops = (gradient(name, size + read, read, reads=(x,), family=family),)
    if not is_fused:
        forward, backward = rms_norm_kernels(tape, x, name)
    elif feeds_products and tape.microbatch.fp8_recipe:
        label = f"{name} output in {recipe_of(tape.microbatch).format}"
        tape.fp8_copies[y] = fp8_tensors(tape, label, x.rows, x.width)
        forward = _casting_norm(tape.microbatch, x, name, family)
    return tape.record(name, (x,), y, forward, backward, parameters=(weight,))


def _in_fp32(tape: Tape, x: Tensor, name: str) -> Tensor:
    """Record the kernel that casts a norm's input, whose gradient is cast back."""
    copy = tape.tensor(f"{name} input in fp32", x.rows, x.width, FP32_BYTES)
    label, size, wide = f"{name} to fp32", x.num_bytes, copy.num_bytes
    backward = (gradient(f"{name} from fp32", wide, size),)
    return tape.record(label, (x,), copy, (elementwise(label, size, wide),), backward)


def _casting_norm(batch: Microbatch, x: Tensor, name: str, family: KernelFamily) -> Ops:
    recipe, gathered, output = recipe_of(batch), batch.sequence_parallel, f"{name} output"
    plain_bytes = x.elements * batch.element_bytes
    written = recipe.copy_bytes(x.elements) if recipe.norm_casts else plain_bytes
    op = elementwise(name, x.num_bytes, written, saves=(x,), family=family)
    if not recipe.norm_casts:
        return op, *casts(batch, output, x.elements, gathered=gathered, knows_largest=True)
    if recipe.transposes and not gathered and not batch.is_frozen:
        return op, transpose(recipe, output, x.elements, Phase.FORWARD)
    return (op,)


def norm_parameters(kind: Normalization, width: int) -> int:
    """Return the number of parameters of a norm over `width` channels."""
    return _PARAMETERS[kind] * width


# The activation of the MLP, fused with the bias before it or as separate kernels.


def activation(
    tape: Tape,
    x: Tensor | tuple[Tensor, Tensor],
    name: str,
    *,
    gated: bool = False,
    squared: bool = False,
    biased: str = "",
    output_name: str = "",
) -> Tensor:
    """Record an activation, which saves its input, and return its output.

    Args:
        x: all tokens. With `gated`, gate and values side by side, or two tensors; the output has
            half the width.
        name: name of its kernels.
        gated: multiply the values by the activation of the gate.
        squared: squared ReLU.
        biased: name of the linear layer whose bias it adds; "" for none.
        output_name: name of the output.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    size, width = sum(part.num_bytes for part in inputs), sum(part.width for part in inputs)
    y = tape.tensor(output_name or f"{name} output", inputs[0].rows, width // (1 + gated))
    if tape.microbatch.kernels.fused_activation:
        family = KernelFamily.SWIGLU if gated else KernelFamily.FUSED
        forward: Ops = (elementwise(name, size, y.num_bytes, saves=inputs, family=family),)
        backward: Ops = (gradient(name, size + y.num_bytes, size, reads=inputs, family=family),)
        if tape.microbatch.fp8_activation_inputs:
            forward, backward = saving_fp8(tape, inputs, forward[0], backward[0])
    else:
        adds_bias = bool(biased) and not tape.microbatch.kernels.biases_in_products
        options = {"gated": gated, "biased": adds_bias, "squared": squared}
        forward, backward = activation_kernels(tape, inputs, y, name, **options)
    deferred = 0
    if biased:
        backward += (bias_gradient(biased, inputs[0]),)
        deferred = size
    return tape.record(name, inputs, y, forward, backward, deferred_gradient_bytes=deferred)


def saving_fp8(
    tape: Tape, inputs: tuple[Tensor, ...], forward: Op, backward: Op
) -> tuple[Ops, Ops]:
    """Return the passes of an activation that saves copies of some inputs in fp8 instead.

    Source: Megatron-LM's `SwiGLUFunction` with `fp8_input_store`.
    """
    copies = [narrow_copy(tape, x, 8) for x in inputs]
    others = tuple(tensor for tensor in forward.saves if tensor not in inputs)
    casts = [copy.cast.replace(saves=copy.tensors) for copy in copies]
    casts_back = [copy.cast_back for copy in copies]
    return ((*casts, forward.replace(saves=others)), (*casts_back, backward.replace(reads=others)))


MASK_BYTES = 1
"""Bytes of a dropout mask per element (paper, Section 4)."""


def dropout(tape: Tape, x: Tensor, name: str, family: KernelFamily = KernelFamily.FUSED) -> Tensor:
    """Record dropout, which saves its mask."""
    y = tape.tensor(f"{name} output", x.rows, x.width)
    mask = tape.tensor(f"{name} mask", x.rows, x.width, MASK_BYTES)
    size, masked = x.num_bytes, y.num_bytes + mask.num_bytes
    forward = elementwise(name, size, masked, saves=(mask,), family=family)
    backward = gradient(name, masked, size, reads=(mask,), family=family)
    return tape.record(name, (x,), y, (forward,), (backward,))


def add(
    tape: Tape,
    branches: tuple[Tensor, ...],
    residual: Tensor,
    label: str,
    *,
    bias: bool = False,
    drops_out: bool = False,
) -> Tensor:
    """Record the sum of branches, their biases and the residual, with dropout before it or without.

    It is one kernel (`bias_dropout_add_fused_train`), which sums several `branches` first, as
    Transformer Engine does for parallel attention and MLP. A software stack without this kernel
    runs one kernel per step. Only dropout has a backward kernel, which is the same in both.
    """
    name, size = f"{label} {'dropout' if drops_out else 'sum'}", residual.num_bytes
    output = f"{label} output with residual" if drops_out else name
    y = tape.tensor(output, residual.rows, residual.width)
    fused = _add_residual(branches, residual, label)
    drop: Ops = ()
    backward: Ops = ()
    if drops_out:
        mask = tape.tensor(f"{label} dropout mask", residual.rows, residual.width, MASK_BYTES)
        masked, read = size + mask.num_bytes, sum(branch.num_bytes for branch in branches)
        drop = (elementwise(name, size, masked, saves=(mask,)),)
        backward = (gradient(name, masked, size, reads=(mask,)),)
        # The residual is not counted: the block's norm saves it as its input.
        sizes, held_bytes = (read + size, masked), read + masked
        fused = elementwise(f"{name} and residual", *sizes, saves=(mask,), holds_bytes=held_bytes)
    forward: Ops = (fused,)
    if not tape.microbatch.kernels.fused_dropout_add:
        add_residual = _add_residual((y,), residual, label)
        forward = (*_branch_sum(tape, branches, label, bias=bias), *drop, add_residual)
    if bias:
        backward += tuple(bias_gradient(name, branch) for branch in branches)
    inputs, deferred = (*branches, residual), size if bias else 0
    return tape.record(label, inputs, y, forward, backward, deferred_gradient_bytes=deferred)


def _add_residual(branches: tuple[Tensor, ...], residual: Tensor, label: str) -> Op:
    """Return the kernel that adds branches to the residual, which the block's norm saves."""
    size = residual.num_bytes
    read = sum(branch.num_bytes for branch in branches) + size
    return elementwise(f"{label} sum", read, size, holds_bytes=read)


def _branch_sum(tape: Tape, branches: tuple[Tensor, ...], label: str, *, bias: bool) -> Ops:
    """Return kernels that add each branch's bias, and then the branches.

    Products whose results ranks sum cannot add the bias themselves.
    """
    batch, sizes = tape.microbatch, [branch.num_bytes for branch in branches]
    bias = bias and not (batch.kernels.biases_in_products and batch.tensor.num_ranks == 1)
    biases = [elementwise(f"{label} bias", size, size) for size in sizes if bias]
    return (*biases, *(elementwise(f"{label} branches", 2 * size, size) for size in sizes[1:]))
