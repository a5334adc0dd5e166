"""What docs/validation.md says of products of experts and of their all-to-alls, recomputed."""

import itertools
import math
from collections.abc import Iterator

from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.mesh import Group
from simtrain.workload.work import Collective, CollectiveKind, GroupedGemm, ProductType
from tests.helpers.command_line import ROOT
from tests.helpers.published_experts import (
    COMBINE_US,
    DEEPSEEK_V3_TRACE_MS,
    GROUPED_FP8,
    GROUPED_US,
)

VALIDATION = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
B200, H100, H200 = (
    DurationModel(load_profile(name)) for name in ("b200_sxm", "h100_sxm", "h200_sxm")
)
BANDS = (("fewer than 300", 0, 300), ("300 to 999", 300, 1000), ("1,000 and more", 1000, 2**31))


def product(shape: tuple[int, int, int, int], which: int) -> GroupedGemm:
    """The forward product, the input gradient or the weight gradient of some experts."""
    experts, tokens, outputs, inputs = shape
    rows = experts * tokens
    if which == 1:
        outputs, inputs = inputs, outputs
    if which == 2:
        return GroupedGemm(experts, rows, inputs, outputs, rows, rows, True, 2, 4)
    return GroupedGemm(experts, rows, inputs, outputs, rows, rows)


def ratios(which: int, least: int, most: int) -> list[float]:
    """Our time over the published one, for so many tokens an expert."""
    return [
        B200.seconds(product(shape, which)) / (times[which] * 1e-6)
        for shape, times in GROUPED_US.items()
        if least <= shape[1] < most
    ]


def grouped_table() -> Iterator[str]:
    names = ("forward", "input gradient", "weight gradient")
    for (which, name), (band, least, most) in itertools.product(enumerate(names), BANDS):
        found = ratios(which, least, most)
        mean = math.exp(sum(map(math.log, found)) / len(found))
        error = sum(abs(one - 1) for one in found) / len(found)
        yield f"| {name} | {band} | {len(found)} | {mean:.2f} | {100 * error:.0f} % |"


def fp8_seconds(gpu: str, dtype: ProductType, name: str, shape: tuple[int, int, int, int]) -> float:
    experts, tokens, outputs, inputs = shape
    rows, weight = experts * tokens, name == "weight gradient"
    sizes = (1, 4 if weight else 2)
    work = GroupedGemm(experts, rows, inputs, outputs, rows, rows, weight, *sizes, dtype)
    return {"H800": H100, "H200": H200, "B200": B200}[gpu].seconds(work)


def fp8_table() -> Iterator[str]:
    for (gpu, dtype, name), rates in GROUPED_FP8.items():
        found = [
            fp8_seconds(gpu, dtype, name, shape) * rate * 1e12 / (2 * math.prod(shape))
            for shape, rate in rates.items()
        ]
        mean = math.exp(sum(map(math.log, found)) / len(found))
        error = sum(abs(one - 1) for one in found) / len(found)
        yield f"| {name} | {gpu}, {dtype} | {len(found)} | {mean:.2f} | {100 * error:.0f} % |"


def test_grouped_products_of_deepseek_v3s_trace() -> None:
    """Ours have all 132 multiprocessors, those of the trace 108."""
    shapes = ((4096, 7168), (7168, 2048), (7168, 4096), (2048, 7168))
    ours_s = 4 * sum(fp8_seconds("H800", "fp8_block", "", (4, 8192, *one)) for one in shapes)
    shared_ms = ours_s * 1e3 * 132 / 108
    text = " ".join(VALIDATION.split())
    assert f"take {DEEPSEEK_V3_TRACE_MS:.1f} ms" in text
    assert f"Ours take {ours_s * 1e3:.1f} ms, or {shared_ms:.1f} ms" in text


def combine_s(nodes: int, tokens: int) -> float:
    """Our all-to-all of eight copies of each token, in bf16."""
    group = Group(("ep",), 8 * nodes, 8)
    return H100.seconds(Collective(CollectiveKind.ALL_TO_ALL, tokens * 8 * 7168 * 2, group))


def met(places: int) -> float:
    """How many of some places have one of the eight experts of a token, in the mean."""
    elsewhere = math.comb(256 - 256 // places, 8) / math.comb(256, 8)
    return places * (1 - elsewhere)


def combine_table() -> Iterator[str]:
    for nodes, times_us in COMBINE_US.items():
        found = [combine_s(nodes, tokens) * 1e6 / time for tokens, time in times_us.items()]
        copies = (8.0, met(8)) if nodes == 1 else ((8 - 8 / nodes), met(nodes) * (1 - 1 / nodes))
        where = "ranks" if nodes == 1 else "other nodes"
        ours_us = combine_s(nodes, 4096) * 1e6
        yield (
            f"| {8 * nodes} on {nodes} | {times_us[4096]:,.0f} | {ours_us:,.0f} "
            f"| {min(found):.2f} to {max(found):.2f} | {copies[0]:.0f} to {where} "
            f"| {copies[1]:.1f} |"
        )


def test_the_tables_of_experts_are_current() -> None:
    lines = [*grouped_table(), *fp8_table(), *combine_table()]
    assert len(lines) == 16
    for line in lines:
        assert line in VALIDATION, line


def test_published_weight_gradients_do_not_add() -> None:
    """They would read and write 8 bytes an element faster than the memory can."""
    experts, _, outputs, inputs = shape = (256, 128, 4096, 7168)
    bytes_per_s = 8 * experts * outputs * inputs / (GROUPED_US[shape][2] * 1e-6)
    memory = B200.profile.gpu.memory_bandwidth.value
    text = f"need {bytes_per_s / 1e12:.0f} TB/s of a memory that has {memory / 1e12:.0f},"
    assert text in " ".join(VALIDATION.split())
