"""Times the matrix products of transformer layers, in the three layouts of training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import RandomData, Run, Timer, random_data
from calibrate.records.file import MeasurementPoint
from calibrate.records.schema import GemmRecord, GemmWork
from calibrate.torch_model.models import LayerSize
from calibrate.torch_model.parallel import weight_gradient
from calibrate.torch_model.training import COMPUTE_DTYPES

DTYPES = COMPUTE_DTYPES | {"fp8": torch.float8_e4m3fn}
_FP8_CAPABILITY = 8, 9
"""Compute capability of the first GPUs that multiply fp8 (Ada)."""


def product_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of all products, each once; in fp8 those of the first layer alone."""
    products = dict.fromkeys(
        product
        for layer in sizes.products
        for tensor in sizes.tensor
        for product in (
            *_linear(layer, tensor, sizes.compute),
            *_attention(layer, tensor, sizes.compute),
        )
    )
    if multiplies_fp8(timer.device):
        products |= dict.fromkeys(_linear(sizes.products[0], 1, "fp8"))

    def measure(product: GemmWork) -> dict[str, Any]:
        return {"time": timer.time(product_runs(product, timer))}

    return [
        MeasurementPoint(GemmRecord, each.model_dump(), partial(measure, each)) for each in products
    ]


def multiplies_fp8(device: str) -> bool:
    """True if a device multiplies fp8."""
    if device != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= _FP8_CAPABILITY


def _linear(layer: LayerSize, tensor: int, dtype: Any) -> Iterator[GemmWork]:
    """The products of QKV, projection and MLP: forward, input and weight gradient (into fp32)."""
    hidden, tokens = layer.hidden, layer.tokens
    inner, wide = hidden // tensor, 4 * hidden // tensor
    # In fp8 frameworks transpose the operands of gradients.
    is_fp8, into_fp32 = dtype == "fp8", dtype not in ("fp8", "fp32")
    of_input: Any = {"layout": "TN" if is_fp8 else "NN", "dtype": dtype}
    of_weight: Any = {"layout": "TN" if is_fp8 else "NT", "dtype": dtype, "accumulate": into_fp32}
    for k, n in ((hidden, 3 * inner), (inner, hidden), (hidden, wide), (wide, hidden)):
        yield GemmWork(m=tokens, n=n, k=k, dtype=dtype)
        yield GemmWork(m=tokens, n=k, k=n, **of_input)
        yield GemmWork(m=n, n=k, k=tokens, **of_weight)


def _attention(layer: LayerSize, tensor: int, dtype: Any) -> Iterator[GemmWork]:
    """The products QKᵀ, attention over V, and gradient of V of each head."""
    tokens, size = layer.seq_length, layer.hidden // layer.heads
    batch = layer.microbatch * layer.heads // tensor
    yield GemmWork(m=tokens, n=tokens, k=size, batch=batch, dtype=dtype)
    yield GemmWork(m=tokens, n=size, k=tokens, layout="NN", batch=batch, dtype=dtype)
    yield GemmWork(m=tokens, n=size, k=tokens, layout="NT", batch=batch, dtype=dtype)


def product_runs(product: GemmWork, timer: Timer) -> list[Run]:
    """The product over several operands in turn, so that no cache holds one."""
    data = random_data(timer.device, DTYPES["bf16" if product.dtype == "fp8" else product.dtype])
    m, n, k = product.m, product.n, product.k
    num_bytes = product.batch * (m * k + k * n + m * n) * DTYPES[product.dtype].itemsize
    return [run_of(product, data) for _ in range(timer.copies(num_bytes))]


def run_of(product: GemmWork, data: RandomData) -> Run:
    """The product of numbers of `data`.

    A is [.., m, k] and B [.., k, n], contiguous along the dimension that the layout says.
    """
    m, n, k, layout = product.m, product.n, product.k, product.layout
    batch = (product.batch,) if product.batch > 1 else ()
    left = data.take(*batch, k, m).mT if layout == "NT" else data.take(*batch, m, k)
    right = data.take(*batch, n, k).mT if layout == "TN" else data.take(*batch, k, n)
    if product.dtype == "fp8":
        # Adds up in fp32 throughout, as frameworks do for gradients.
        scale = torch.ones((), device=left.device)
        left, right = (each.to(DTYPES["fp8"]) for each in (left, right))
        return lambda: torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)
    if product.accumulate:
        main = torch.zeros(m, n, device=left.device)
        # Tokens first, as the layer has them: [k, 1, m] and [k, 1, n].
        return partial(weight_gradient, left.t().unsqueeze(1), right.unsqueeze(1), main)
    return partial(torch.bmm if batch else torch.mm, left, right)
