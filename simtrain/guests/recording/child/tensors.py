"""How tensors are written in a recording: data type and shape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import torch

from simtrain.guests.recording.child import torch_internals as private
from simtrain.guests.recording.child.problems import Unrecordable

_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
}
_PRIME = "'"
_MOST_IN_ORDER = 8
"""Lists of more tensors, as optimizers have, are written with numbers of equal ones."""


def storage_key(tensor: torch.Tensor) -> int:
    """Return what identifies the storage of a tensor."""
    return int(private.cdata(tensor.untyped_storage()))


def text_of(tensor: torch.Tensor) -> str:
    """Write a tensor: "bf16[4,1024,768]".

    A star marks a dimension that repeats one element, and a prime matrices stored by columns.
    """
    sizes = [
        f"{size}*" if size > 1 and stride == 0 else str(size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    name = _NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    return f"{name}[{','.join(sizes)}]{_PRIME if _is_transposed(tensor) else ''}"


def _is_transposed(tensor: torch.Tensor) -> bool:
    if tensor.dim() < 2 or min(tensor.shape[-2:]) == 1:
        return False
    return tensor.stride(-1) != 1 and tensor.stride(-2) == 1


def texts_of(tensors: Iterable[torch.Tensor]) -> list[str]:
    """Write tensors in order; of many tensors, the number of each: "24 x f32[768]"."""
    texts = [*map(text_of, tensors)]
    if len(texts) <= _MOST_IN_ORDER:
        return texts
    return [f"{number} x {text}" if number > 1 else text for text, number in Counter(texts).items()]


_PRODUCTS = re.compile(
    r"aten\.(_?linalg_(?!vector_norm|cross)|mv|addmv|v?dot|addbmm|cholesky|triangular_|_cdist|_trilinear|_int_mm|lu_"
    r"|\w*rnn|\w*lstm|\w*gru|ormqr|geqrf|_scaled_grouped_mm|_efficient_|_flash_|matrix_exp)"
)
"""Ops with products that no rule of durations counts. Those of norms and layers have stand-ins."""


def check_product(name: str, *, transposed: bool) -> None:
    """Refuse an op with products that nothing counts, such as a transposed convolution.

    Raises:
        Unrecordable: it is such an op.
    """
    if transposed or _PRODUCTS.match(name):
        what = "a transposed convolution" if transposed else name
        why = "it has products whose time is not known"
        raise Unrecordable(what, why, "leave it out while recording, or write it with matmul")
