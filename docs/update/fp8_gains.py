"""Simulated gains of fp8 and casts to fp4, compared with published ones."""

from dataclasses import replace

from docs.update.published.fp8 import (
    FP4_PRODUCTS_MS,
    TE_PRODUCTS_MS,
    TE_TOKENS,
    TE_WEIGHTS,
    TORCHTITAN,
    TORCHTITAN_TENSOR,
)
from docs.update.request import Request, table
from docs.update.simulations import evaluation, run_of
from simtrain.durations.model import GemmMachine, gemm_seconds
from simtrain.hardware.load import load_profile
from simtrain.workload.work import Gemm, ProductType

CAST_BYTES = 6
"""Bytes per element of a cast with one scale per tensor: 2 read twice, and two copies written."""
FP4_CAST_BYTES = 2 + 2 * 0.5625
"""Bytes per element of a cast to fp4 after the largest values are found."""
TITAN = (
    *("llama3_8b", "software=torchtitan_compiled", "cluster=h100_sxm"),
    "parallelism={tensor: 1, sequence_parallel: false, data: 8}",
    *("batch={micro: 2, global: 16}", "memory.zero_stage=3", "overlap.data_parallel=true"),
)
TITAN_FP8 = "precision={compute: fp8, fp8_recipe: tensorwise, fp8_parameters: true}"


def _sizes(product: str, outputs: int, inputs: int) -> tuple[int, int, int]:
    """Return m, n and k of a product of one linear layer."""
    return {
        "forward": (TE_TOKENS, outputs, inputs),
        "input gradient": (TE_TOKENS, inputs, outputs),
        "weight gradient": (outputs, inputs, TE_TOKENS),
    }[product]


def products_s(product: str, dtype: ProductType, cluster: str = "h200_sxm") -> float:
    """Return our time of the published products in a data type."""
    machine = GemmMachine.of(load_profile(cluster), dtype)
    ops = (Gemm(*_sizes(product, *weight)) for weight in TE_WEIGHTS)
    size = {"bf16": 2, "nvfp4": 0.5}.get(dtype, 1)
    return sum(gemm_seconds(replace(op, dtype=dtype, element_bytes=size), machine) for op in ops)


def casts_s(product: str) -> float:
    """Return our time to cast both operands of the published products, on an H200."""
    bandwidth = load_profile("h200_sxm").memory_bound.stream_bandwidth.value
    sizes = (_sizes(product, *weight) for weight in TE_WEIGHTS)
    return sum(CAST_BYTES * k * (m + n) for m, n, k in sizes) / bandwidth


def fp4_casts_s(product: str) -> float:
    """Return our time to cast both operands of the published products to fp4, on a B300."""
    memory = load_profile("b300_sxm").memory_bound
    cast = memory.kernels.cast
    assert cast is not None and cast.forward is not None
    elements = sum(k * (m + n) for m, n, k in (_sizes(product, *weight) for weight in TE_WEIGHTS))
    seconds = 2 / memory.stream_bandwidth.value + FP4_CAST_BYTES / cast.forward.value
    return elements * seconds


def fp4_products(request: Request) -> str:
    """Return the table of Transformer Engine's products and casts in fp4."""
    rows = []
    for product, (products_ms, with_casts_ms) in FP4_PRODUCTS_MS.items():
        ours = products_s(product, "nvfp4", "b300_sxm"), fp4_casts_s(product)
        published = products_ms, with_casts_ms - products_ms
        cells = (
            cell
            for there, here in zip(published, ours, strict=True)
            for cell in (f"{there:.2f} ms", f"{1e3 * here:.2f} ms")
        )
        rows.append([product, *cells])
    return table(
        ["product", "published", "ours", "casts of both operands, published", "ours"], rows
    )


def fp8_products(request: Request) -> str:
    """Return the table of Transformer Engine's products and casts in fp8."""
    rows = []
    for product, (bf16_ms, fp8_ms, with_casts_ms) in TE_PRODUCTS_MS.items():
        gain = products_s(product, "bf16") / products_s(product, "fp8")
        ours, published = 1e3 * casts_s(product), with_casts_ms - fp8_ms
        cells = f"{bf16_ms / fp8_ms:.2f}", f"{gain:.2f}", f"{published:.2f} ms", f"{ours:.2f} ms"
        rows.append([product, *cells])
    gains = "speed-up by fp8, published", "ours"
    return table(["product", *gains, "casts of both operands, published", "ours"], rows)


def fp8_training(request: Request) -> str:
    """Return the table of torchtitan's runs, with ours without and with full recompute."""
    (bf16, bf16_gib), (fp8, fp8_gib) = TORCHTITAN["bf16"], TORCHTITAN["fp8"]
    rows = [["published", f"{fp8 / bf16:.2f}", f"{bf16_gib - fp8_gib:.1f} GiB"]]
    for policy, name in (("none", "ours, no recompute"), ("full", "ours, full recompute")):
        words = (*TITAN, f"recompute={policy}")
        gain = run_of((*words, TITAN_FP8)).tokens_per_s / run_of(words).tokens_per_s
        saved = evaluation(words).peak_bytes - evaluation((*words, TITAN_FP8)).peak_bytes
        rows.append([name, f"{gain:.2f}", f"{saved / 2**30:.1f} GiB"])
    return table(["run", "speed-up by fp8", "memory that fp8 saves"], rows)


def torchtitan_tensor(request: Request) -> str:
    """Return the table of torchtitan's runs with tensor parallelism."""
    rows = []
    for name, scenario, replicas, sequences, is_fp8, is_async, tokens_per_s in TORCHTITAN_TENSOR:
        recompute = "ops" if scenario == "llama3_8b" else "full"
        switch = "true" if is_async else "false"
        words = (
            *(scenario, "software=torchtitan_compiled", "cluster=h100_sxm"),
            "parallelism={tensor: 8, sequence_parallel: true, pipeline: 1, scatter_gather: false, "
            f"data: {replicas}, first_stage_layers: null, last_stage_layers: null}}",
            f"batch={{micro: {sequences}, global: {sequences * replicas}}}",
            *("memory={zero_stage: 3}", f"recompute={recompute}"),
            f"overlap={{data_parallel: true, userbuffers: {switch}, tensor_parallel: {switch}}}",
        )
        ours = run_of((*words, TITAN_FP8) if is_fp8 else words).tokens_per_s / (8 * replicas)
        cells = f"{tokens_per_s:,.0f}", f"{ours:,.0f}", f"{tokens_per_s / ours - 1:+.0%}"
        rows.append([name, "async" if is_async else "plain", *cells])
    headings = ["Llama 3.1", "tensor parallelism", "tokens/s and GPU, published", "ours"]
    return table([*headings, "error of time"], rows)
