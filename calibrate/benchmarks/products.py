"""Times the matrix products of transformer layers, in the three layouts of training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from calibrate.benchmarks.sizes import LayerSize, Sizes
from calibrate.benchmarks.timing import RandomData, Run, Timer, random_data
from calibrate.records.file import Point
from calibrate.records.schema import GemmRecord
from calibrate.torch_model.parallel import weight_gradient

Layout = Literal["TN", "NN", "NT"]
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}
_FP8_CAPABILITY = 8, 9
"""Compute capability of the first GPUs that multiply fp8 (Ada)."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product C[m, n] = A[m, k] B[k, n], `batch` times, like `GemmRecord`."""

    m: int
    n: int
    k: int
    layout: Layout
    batch: int = 1
    dtype: str = "bf16"
    accumulate: bool = False

    @property
    def moved_bytes(self) -> int:
        """Bytes of operands and result."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return self.batch * elements * DTYPES[self.dtype].itemsize


def product_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of all products, each once."""
    dtypes = [dtype for dtype in sizes.dtypes if dtype != "fp8" or multiplies_fp8(timer.device)]
    return [
        Point(GemmRecord, asdict(product), partial(_measure, product, timer))
        for product in dict.fromkeys(_products(sizes, dtypes))
    ]


def multiplies_fp8(device: str) -> bool:
    """True if a device multiplies fp8."""
    if device != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= _FP8_CAPABILITY


def _products(sizes: Sizes, dtypes: Iterable[str]) -> Iterator[Product]:
    for layer in sizes.products:
        for tensor in sizes.tensor:
            yield from _linear_products(layer, tensor, "bf16")
            yield from _attention_products(layer, tensor)
    for dtype in dtypes:
        yield from _linear_products(sizes.products[0], 1, dtype)


def _linear_products(layer: LayerSize, tensor: int, dtype: str) -> Iterator[Product]:
    """The products of QKV, projection and MLP: forward, input and weight gradient (into fp32)."""
    hidden, tokens = layer.hidden, layer.tokens
    inner, wide = hidden // tensor, 4 * hidden // tensor
    linears = ((hidden, 3 * inner), (inner, hidden), (hidden, wide), (wide, hidden))
    for inputs, outputs in linears:
        # In fp8 frameworks transpose the operands of gradients.
        layouts: tuple[Layout, Layout] = ("TN", "TN") if dtype == "fp8" else ("NN", "NT")
        into_fp32 = dtype not in ("fp8", "fp32")
        yield Product(tokens, outputs, inputs, "TN", dtype=dtype)
        yield Product(tokens, inputs, outputs, layouts[0], dtype=dtype)
        yield Product(outputs, inputs, tokens, layouts[1], dtype=dtype, accumulate=into_fp32)


def _attention_products(layer: LayerSize, tensor: int) -> Iterator[Product]:
    """The products QKᵀ, attention over V, and gradient of V of each head."""
    tokens, head_size = layer.seq_length, layer.hidden // layer.heads
    batch = layer.microbatch * layer.heads // tensor
    yield Product(tokens, tokens, head_size, "TN", batch=batch)
    yield Product(tokens, head_size, tokens, "NN", batch=batch)
    yield Product(tokens, head_size, tokens, "NT", batch=batch)


def _measure(product: Product, timer: Timer) -> dict[str, Any]:
    return {"time": timer.time(product_runs(product, timer))}


def product_runs(product: Product, timer: Timer) -> list[Run]:
    """The product over several operands in turn."""
    drawn = torch.bfloat16 if product.dtype == "fp8" else DTYPES[product.dtype]
    data = random_data(timer.device, drawn)
    return [run_of(product, data) for _ in range(timer.copies(product.moved_bytes))]


def run_of(product: Product, data: RandomData) -> Run:
    """The product of numbers of `data`."""
    left, right = _operands(product, data)
    if product.dtype == "fp8":
        # Adds up in fp32 throughout, as frameworks do for gradients.
        scale = torch.ones((), device=left.device)
        left, right = (each.to(DTYPES["fp8"]) for each in (left, right))
        return lambda: torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)
    if product.accumulate:
        main = torch.zeros(product.m, product.n, device=left.device)
        # Tokens first, as the layer has them: [k, 1, m] and [k, 1, n].
        return partial(weight_gradient, left.t().unsqueeze(1), right.unsqueeze(1), main)
    return partial(torch.bmm if product.batch > 1 else torch.mm, left, right)


def _operands(product: Product, data: RandomData) -> tuple[Tensor, Tensor]:
    """A [.., m, k] and B [.., k, n], contiguous along the dimension that the layout says."""
    m, n, k = product.m, product.n, product.k
    batch = (product.batch,) if product.batch > 1 else ()
    layout = product.layout
    left = data.take(*batch, k, m).mT if layout == "NT" else data.take(*batch, m, k)
    right = data.take(*batch, n, k).mT if layout == "TN" else data.take(*batch, k, n)
    return left, right
