"""Kernels of eager PyTorch, for software stacks without fused kernels.

Sources: Hugging Face's transformers (LlamaRMSNorm, apply_rotary_pos_emb, LlamaMLP), Megatron-LM's
FusedScaleMaskSoftmax.forward_torch_softmax, and for the backward pass PyTorch's derivatives.yaml.
Kernels on one number per row are included, because the host launches them too.
"""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.workload.ops import Op, Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import Tape
from simtrain.workload.work import FP32_BYTES


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
        _gradient(f"{name} scale", wide + row, wide, reads=(root,), wait_bytes=wide),
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


def rotation_kernels(name: str, size: int) -> tuple[Ops, Ops]:
    """Return the kernels of x cos + rotate_half(x) sin, of `size` bytes; tables are not counted."""
    negate, join = ("negate half", size // 2, size // 2, 0), ("join halves", size, size, 0)
    sine, cosine = ("sine", size, size, 0), ("cosine", size, size, size)
    add = ("sum", 2 * size, size, 0)

    def kernels(steps: Sequence[tuple[str, int, int, int]], phase: Phase) -> Ops:
        return tuple(
            elementwise(f"{name} {step}", read, write, phase, holds_bytes=read + write + waiting)
            for step, read, write, waiting in steps
        )

    # Backward: both products, then the inverse of rotate_half.
    forward = kernels((negate, join, sine, cosine, add), Phase.FORWARD)
    return forward, kernels((cosine, sine, negate, join, add), Phase.INPUT_GRADIENT)


def complex_rotation_kernels(name: str, size: int) -> tuple[Ops, Ops]:
    """Return the kernels of a product of complex numbers in fp32; tables are not counted.

    Source: torchtitan, models/llama3 (`apply_rotary_emb`).
    """
    wide = 2 * size
    forward, backward = (
        (
            elementwise(f"{name} to fp32", size, wide, phase),
            elementwise(f"{name} product", wide, wide, phase),
            elementwise(f"{name} from fp32", wide, size, phase),
        )
        for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT)
    )
    return forward, backward


def softmax_kernels(
    scores: Tensor, y: Tensor, mask_bytes: int, *, separate_masking: bool
) -> tuple[Ops, Ops]:
    """Return the forward and backward kernels of a causal mask and a softmax of all scores.

    With `separate_masking`, scores are divided, multiplied by the mask and lowered where it is 0.
    The last step is a sum, which has no backward kernel.
    """
    size = scores.num_bytes
    scale: Ops = ()
    lower: Ops = ()
    scale_gradient: Ops = ()
    if separate_masking:
        scale = (elementwise("scores division", size, size),)
        lower = (elementwise("softmax mask sum", size + mask_bytes, size),)
        scale_gradient = (_gradient("scores division", size, size),)
    forward = (
        *scale,
        elementwise("softmax mask", size + mask_bytes, size, holds_bytes=size),
        *lower,
        elementwise("softmax", size, size, saves=(y,)),
    )
    backward = (
        _gradient("softmax", 2 * size, size, reads=(y,)),
        _gradient("softmax mask", size + mask_bytes, size),
        *scale_gradient,
    )
    return forward, backward


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
    """Return a backward kernel during which `wait_bytes` of other gradients exist."""
    held_bytes = read_bytes + write_bytes + wait_bytes
    return gradient(name, read_bytes, write_bytes, reads=reads, holds_bytes=held_bytes)
