"""Errors against published products and all-to-alls of experts, for docs/validation.md."""

import itertools
import math
from collections.abc import Sequence

from docs.update.published.experts import (
    COMBINE_US,
    DEEPSEEK_V3_TRACE_MS,
    GROUPED_FP8,
    GROUPED_US,
)
from docs.update.request import Generator, Request, percent, table
from simtrain.base.mesh import Group
from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.workload.work import Collective, CollectiveKind, GroupedGemm, ProductType

B200, H100, H200 = (
    DurationModel(load_profile(name)) for name in ("b200_sxm", "h100_sxm", "h200_sxm")
)
MODELS = {"H800": H100, "H200": H200, "B200": B200}
BANDS = (("fewer than 300", 0, 300), ("300 to 999", 300, 1000), ("1,000 and more", 1000, 2**31))
PRODUCTS = ("forward", "input gradient", "weight gradient")
ERRORS_HEAD = ["points", "our time over the published one", "mean error"]
TRACE_SHAPES = ((4096, 7168), (7168, 2048), (7168, 4096), (2048, 7168))
EXPERTS, TOP_K, HIDDEN_SIZE = 256, 8, 7168
Shape = tuple[int, int, int, int]
"""Experts, tokens per expert, outputs, inputs."""


def _product(shape: Shape, which: int) -> GroupedGemm:
    """Build the forward product, the input gradient or the weight gradient of some experts."""
    experts, tokens, outputs, inputs = shape
    rows = experts * tokens
    if which == 1:
        outputs, inputs = inputs, outputs
    if which == 2:
        return GroupedGemm(experts, rows, inputs, outputs, rows, rows, True, 2, 4, True)
    return GroupedGemm(experts, rows, inputs, outputs, rows, rows)


def _errors(ratios: Sequence[float]) -> list[str]:
    """Return the cells of a row: number of points, geometric mean ratio, mean |error|."""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    error = sum(abs(one - 1) for one in ratios) / len(ratios)
    return [f"{len(ratios)}", f"{mean:.2f}", percent(error, 0)]


def expert_products(request: Request) -> str:
    """Return the table of Transformer Engine's grouped products, by tokens per expert."""
    rows = []
    for (which, name), (band, least, most) in itertools.product(enumerate(PRODUCTS), BANDS):
        ratios = [
            B200.seconds(_product(shape, which)) / (times[which] * 1e-6)
            for shape, times in GROUPED_US.items()
            if least <= shape[1] < most
        ]
        rows.append([name, band, *_errors(ratios)])
    return table(["product of experts", "tokens per expert", *ERRORS_HEAD], rows)


def _fp8_s(gpu: str, dtype: ProductType, name: str, shape: Shape) -> float:
    experts, tokens, outputs, inputs = shape
    rows, weight = experts * tokens, name == "weight gradient"
    sizes = (1, 4 if weight else 2)
    work = GroupedGemm(experts, rows, inputs, outputs, rows, rows, weight, *sizes, weight, dtype)
    return MODELS[gpu].seconds(work)


def expert_products_fp8(request: Request) -> str:
    """Return the table of published grouped products in fp8."""
    rows = []
    for (gpu, dtype, name), rates in GROUPED_FP8.items():
        ratios = [
            _fp8_s(gpu, dtype, name, shape) * rate * 1e12 / (2 * math.prod(shape))
            for shape, rate in rates.items()
        ]
        rows.append([name, f"{gpu}, {dtype}", *_errors(ratios)])
    return table(["product of experts in fp8", "GPU, products", *ERRORS_HEAD], rows)


def expert_trace(request: Request) -> str:
    """Return a time of DeepSeek-V3's trace, by argument.

    `published` is the published time, `ours` our prediction with all 132 multiprocessors, and
    `shared` our prediction with 108 of them.
    """
    ours_ms = 4e3 * sum(_fp8_s("H800", "fp8_block", "", (4, 8192, *one)) for one in TRACE_SHAPES)
    times_ms = {
        "published": DEEPSEEK_V3_TRACE_MS,
        "ours": ours_ms,
        "shared": ours_ms * 132 / 108,
    }
    return f"{times_ms[request.text]:.1f} ms"


def expert_weight_gradient(request: Request) -> str:
    """Return the TB/s that the published weight gradients would need to read and add gradients."""
    experts, _, outputs, inputs = shape = (256, 128, 4096, 7168)
    bytes_per_s = 8 * experts * outputs * inputs / (GROUPED_US[shape][2] * 1e-6)
    return f"{bytes_per_s / 1e12:.0f} TB/s"


def _combine_s(nodes: int, tokens: int) -> float:
    """Return the time of our all-to-all with eight copies of each token, in bf16."""
    group = Group(("ep",), 8 * nodes, 8)
    size = tokens * TOP_K * HIDDEN_SIZE * 2
    return H100.seconds(Collective(CollectiveKind.ALL_TO_ALL, size, group))


def _expected_places(places: int) -> float:
    """Return how many of `places` ranks or nodes have an expert of a token, on average."""
    none = math.comb(EXPERTS - EXPERTS // places, TOP_K) / math.comb(EXPERTS, TOP_K)
    return places * (1 - none)


def expert_all_to_alls(request: Request) -> str:
    """Return the table of DeepEP's all-to-alls."""
    rows = []
    for nodes, times_us in COMBINE_US.items():
        ratios = [_combine_s(nodes, tokens) * 1e6 / time for tokens, time in times_us.items()]
        ours, theirs = float(TOP_K), _expected_places(8)
        if nodes > 1:
            ours, theirs = (copies * (1 - 1 / nodes) for copies in (ours, _expected_places(nodes)))
        rows.append(
            [
                f"{8 * nodes} on {nodes}",
                f"{times_us[4096]:,.0f}",
                f"{_combine_s(nodes, 4096) * 1e6:,.0f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{ours:.0f} to {'ranks' if nodes == 1 else 'other nodes'}",
                f"{theirs:.1f}",
            ]
        )
    head = [
        *("ranks on nodes", "DeepEP, µs", "ours, µs"),
        *("ours over DeepEP, 512 to 16,384 tokens", "copies of a token, ours", "DeepEP's"),
    ]
    return table(head, rows)


GENERATORS: dict[str, Generator] = {
    one.__name__: one
    for one in (
        expert_products,
        expert_products_fp8,
        expert_trace,
        expert_weight_gradient,
        expert_all_to_alls,
    )
}
