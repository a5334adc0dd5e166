"""Times the matrix products of transformer layers, in the three layouts of training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from calibrate.record_file import Point
from calibrate.records import GemmRecord
from calibrate.sizes import LayerSize, Sizes
from calibrate.timing import RandomData, Run, Timer, random_data
from calibrate.torch_parallel import weight_gradient

Layout = Literal["TN", "NN", "NT"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Product:
    """C[m, n] = A[m, k] B[k, n], `batch` times, as `records.GemmRecord` has it."""

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
    """Every product once."""
    products = dict.fromkeys(_products(sizes))
    return [
        Point(GemmRecord, _what(product), partial(_measure, product, timer)) for product in products
    ]


def _products(sizes: Sizes) -> Iterator[Product]:
    for layer in sizes.products:
        for tensor in sizes.tensor:
            yield from _linear_products(layer, tensor, "bf16")
            yield from _attention_products(layer, tensor)
    for dtype in sizes.dtypes:
        yield from _linear_products(sizes.products[0], 1, dtype)


def _linear_products(layer: LayerSize, tensor: int, dtype: str) -> Iterator[Product]:
    """Forward, input gradient and weight gradient (into fp32) of QKV, projection and MLP."""
    hidden, tokens = layer.hidden, layer.tokens
    inner, wide = hidden // tensor, 4 * hidden // tensor
    linears = ((hidden, 3 * inner), (inner, hidden), (hidden, wide), (wide, hidden))
    for inputs, outputs in linears:
        yield Product(tokens, outputs, inputs, "TN", dtype=dtype)
        yield Product(tokens, inputs, outputs, "NN", dtype=dtype)
        into_fp32 = dtype != "fp32"
        yield Product(outputs, inputs, tokens, "NT", dtype=dtype, accumulate=into_fp32)


def _attention_products(layer: LayerSize, tensor: int) -> Iterator[Product]:
    """QKᵀ, attention over V, and the gradient of V of each head."""
    tokens, head_size = layer.seq_length, layer.hidden // layer.heads
    batch = layer.microbatch * layer.heads // tensor
    yield Product(tokens, tokens, head_size, "TN", batch=batch)
    yield Product(tokens, head_size, tokens, "NN", batch=batch)
    yield Product(tokens, head_size, tokens, "NT", batch=batch)


def _what(product: Product) -> dict[str, Any]:
    names = "m", "n", "k", "layout", "batch", "dtype", "accumulate"
    return {name: getattr(product, name) for name in names}


def _measure(product: Product, timer: Timer) -> dict[str, Any]:
    return {"time": timer.time(product_runs(product, timer))}


def product_runs(product: Product, timer: Timer) -> list[Run]:
    """The product over operands in turn."""
    data = random_data(timer.device, DTYPES[product.dtype])
    return [_run(product, data) for _ in range(timer.copies(product.moved_bytes))]


def _run(product: Product, data: RandomData) -> Run:
    left, right = _operands(product, data)
    if product.accumulate:
        main = torch.zeros(product.m, product.n, device=left.device)
        # Tokens first, as the layer has them: [k, 1, m] and [k, 1, n].
        return partial(weight_gradient, left.t().unsqueeze(1), right.unsqueeze(1), main)
    return partial(torch.bmm if product.batch > 1 else torch.mm, left, right)


def _operands(product: Product, data: RandomData) -> tuple[Tensor, Tensor]:
    """A [.., m, k] and B [.., k, n], contiguous along the dimension that the layout says."""
    m, n, k = product.m, product.n, product.k
    batch = (product.batch,) if product.batch > 1 else ()
    left = data.take(*batch, *_ordered(m, k, turned=product.layout == "NT"))
    right = data.take(*batch, *_ordered(k, n, turned=product.layout == "TN"))
    return (
        left.mT if product.layout == "NT" else left,
        right.mT if product.layout == "TN" else right,
    )


def _ordered(rows: int, columns: int, *, turned: bool) -> Iterable[int]:
    return (columns, rows) if turned else (rows, columns)
