"""Errors against published products and all-to-alls of experts, for docs/validation.md."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from docs.update.published.experts import (
    BRIDGE_S,
    COMBINE_US,
    DEEPSEEK_V3_TRACE_MS,
    DISPATCH_US,
    EXCHANGES_US,
    GROUPED_FP8,
    GROUPED_US,
    LAYERS_MS,
)
from docs.update.request import Request, percent, signed_percent, table
from docs.update.simulations import run_of
from simtrain.base.mesh import Group
from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import Scenario
from simtrain.workload.blocks.experts import experts
from simtrain.workload.blocks.router import ExpertMlp, RandomChoice, expected_places
from simtrain.workload.chunk import Chunk
from simtrain.workload.gpt import TransformerLayer
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Tape
from simtrain.workload.work import (
    Collective,
    CollectiveKind,
    GroupedGemm,
    ProductType,
    TokenExchange,
)

B200, H100, H200 = (
    DurationModel(load_profile(name)) for name in ("b200_sxm", "h100_sxm", "h200_sxm")
)
PROFILES = {"h100_sxm": H100, "gb200": DurationModel(load_profile("gb200"))}
MODELS = {"H800": H100, "H200": H200, "B200": B200}
BANDS = (("fewer than 300", 0, 300), ("300 to 999", 300, 1000), ("1,000 and more", 1000, 2**31))
PRODUCTS = ("forward", "input gradient", "weight gradient")
ERRORS_HEAD = ["points", "our time over the published one", "mean error"]
TRACE_SHAPES = ((4096, 7168), (7168, 2048), (7168, 4096), (2048, 7168))
EXPERTS, TOP_K, HIDDEN_SIZE = 256, 8, 7168
ROW_BYTES = 2 * HIDDEN_SIZE
DEEPSEEK_V3 = RandomChoice(EXPERTS, TOP_K, 8, 4)
CI_LAYER: dict[str, Any] = {
    **{"num_layers": 1, "num_attention_heads": 8, "seq_length": 4096, "biases": False},
    **{"activation": "swiglu", "hidden_dropout": 0, "attention_dropout": 0},
}
CI_MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixtral": (
        {"hidden_size": 4096},
        {"num": 8, "top_k": 2, "ffn_hidden_size": 14336, "router_dtype": "fp32"},
    ),
    "deepseek": (
        {"hidden_size": 7168},
        {
            **{"num": 32, "top_k": 8, "ffn_hidden_size": 2048, "shared_ffn_hidden_size": 2048},
            **{"router_dtype": "fp32", "router_score": "sigmoid", "router_bias": True},
            **{"router_groups": 8, "router_group_top_k": 4},
        },
    ),
}
"""Models of Megatron-LM's performance tests of experts (test_cases.py)."""
signed = functools.partial(signed_percent, digits=0)
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


def _exchange_us(
    model: DurationModel, dispatcher: str, group: Group, choice: RandomChoice, row: int, tokens: int
) -> float:
    """Return the time of our exchange of tokens with rows of so many bytes, in microseconds."""
    rows, to_nodes = (
        round(tokens * expected_places(choice, places))
        for places in (group.num_ranks, group.num_nodes)
    )
    size, kind = rows * row, CollectiveKind.ALL_TO_ALL
    work = TokenExchange(kind, size, group, dispatcher, size, to_nodes * row, rows)
    return 1e6 * model.seconds(work)


def expert_all_to_alls(request: Request) -> str:
    """Return the table of DeepEP's exchanges."""
    rows, choice = [], RandomChoice(EXPERTS, TOP_K)
    for nodes, times_us in COMBINE_US.items():
        group, cells = Group(("ep",), 8 * nodes, 8), []
        ranges = []
        for published, row in ((DISPATCH_US[nodes], HIDDEN_SIZE * 33 // 32), (times_us, ROW_BYTES)):
            ours = {
                tokens: _exchange_us(H100, "deepep", group, choice, row, tokens)
                for tokens in published
            }
            cells += [f"{published[4096]:,.0f}", f"{ours[4096]:,.0f}"]
            ratios = [ours[tokens] / published[tokens] for tokens in published]
            ranges.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
        all_to_all = _combine_s(nodes, 4096) * 1e6
        rows.append([f"{8 * nodes} on {nodes}", *cells, *ranges, f"{all_to_all:,.0f}"])
    head = [
        *("ranks on nodes", "dispatch, µs", "ours", "combination, µs", "ours"),
        *("dispatch, 512 to 16,384 tokens", "combination", "all-to-all, ours, µs"),
    ]
    return table(head, rows)


def _exchanges() -> Iterator[tuple[str, Group, tuple[int, ...], float, float]]:
    """Yield profile, ranks, published times, and ours: all-to-all, and HybridEP's exchange."""
    for (cluster, ranks), times_us in EXCHANGES_US.items():
        model = PROFILES[cluster]
        group = Group(("ep",), ranks, min(ranks, model.profile.cluster.nvlink_gpus))
        work = Collective(CollectiveKind.ALL_TO_ALL, 4096 * TOP_K * ROW_BYTES, group)
        once_us = _exchange_us(model, "hybridep", group, DEEPSEEK_V3, ROW_BYTES, 4096)
        yield cluster, group, times_us, 1e6 * model.seconds(work), once_us


def expert_exchanges(request: Request) -> str:
    """Return the table of exchanges by all-to-alls and by HybridEP."""
    rows = []
    for cluster, group, times_us, *ours_us in _exchanges():
        cells = [f"`{cluster}`", f"{group.num_ranks} on {group.num_nodes}"]
        for pair, own_us in zip((times_us[:2], times_us[2:]), ours_us, strict=True):
            there, back = pair
            errors = [signed(own_us / time_us - 1) for time_us in pair]
            cells += [f"{there:,} and {back:,}", f"{own_us:,.0f}", " and ".join(errors)]
        rows.append(cells)
    head = [
        *("profile", "ranks on nodes", "all-to-alls, µs", "ours", "error"),
        *("HybridEP, µs", "ours", "error"),
    ]
    return table(head, rows)


def expert_exchange_error(request: Request) -> str:
    """Return the mean |error| of HybridEP's exchanges, or with `worst` the largest."""
    errors = [
        once_us / time_us - 1
        for _, _, times_us, _, once_us in _exchanges()
        for time_us in times_us[2:]
    ]
    if request.text == "worst":
        return signed(max(errors, key=abs))
    return percent(sum(map(abs, errors)) / len(errors), 0)


def expert_routing_rate(request: Request) -> str:
    """Return the rate out of a node that uniform routing, or `limited` routing, needs in GB/s.

    For HybridEP's dispatch over 64 ranks of H100s, per GPU.
    """
    choice = DEEPSEEK_V3 if request.text == "limited" else RandomChoice(EXPERTS, TOP_K)
    leaving = 4096 * expected_places(choice, 8) * 7 / 8 * ROW_BYTES
    return f"{leaving / EXCHANGES_US['h100_sxm', 64][2] / 1e3:.0f} GB/s"


@dataclass(frozen=True, slots=True)
class _Layer:
    """A block of experts alone."""

    mlp: ExpertMlp
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the experts."""
        return experts(tape, x, self.mlp)


@functools.cache
def _layer_s(model: str, dtype: str, dispatcher: str) -> tuple[float, float]:
    """Return the time of a layer of experts, forward and backward."""
    settings, section = CI_MODELS[model]
    precision = {"compute": "fp8", "fp8_recipe": "blockwise"} if dtype == "fp8" else {}
    scenario = Scenario.model_validate(
        {
            "model": CI_LAYER | settings | {"experts": section},
            "parallelism": {"data": 8, "expert": 8, "expert_dispatch": dispatcher},
            "batch": {"micro": 1, "global": 8},
            "precision": precision,
            "software": "megatron_core",
            "cluster": "h100_sxm",
        }
    )
    pass_ = Plan.of(scenario, 8).layers_pass(1, "F")
    (layer,) = pass_.chunk.blocks
    assert isinstance(layer, TransformerLayer) and layer.experts is not None
    chunk, machine = Chunk(((_Layer(layer.experts), 1),)), Machine(H100)
    forward, backward = (
        machine.time(replace(pass_, chunk=chunk, kind=kind)).duration_s for kind in ("F", "B")
    )
    return forward, backward


def expert_layers(request: Request) -> str:
    """Return the table of layers of experts in Megatron-LM's tests.

    With `saved` and `saved_by_ours`, return what HybridEP saves in the first model in bf16.
    """
    if request.text:
        names = [("deepseek", "bf16", name) for name in ("all_to_all", "hybridep")]
        there, here = (
            LAYERS_MS[key] if request.text == "saved" else [1e3 * time for time in _layer_s(*key)]
            for key in names
        )
        saved = [f"{a - b:.2f}" for a, b in zip(there, here, strict=True)]
        return f"{' and '.join(saved)} ms"
    rows = []
    for (model, dtype, dispatcher), times_ms in LAYERS_MS.items():
        ours = [1e3 * time_s for time_s in _layer_s(model, dtype, dispatcher)]
        cells = [model, dtype, f"`{dispatcher}`"]
        for published, own in zip(times_ms, ours, strict=True):
            cells += [f"{published:.2f}", f"{own:.2f}", signed(own / published - 1)]
        rows.append(cells)
    head = [
        *("model", "data type", "dispatcher", "forward, ms", "ours", "error"),
        *("backward, ms", "ours", "error"),
    ]
    return table(head, rows)


def expert_releases(request: Request) -> str:
    """Return the table of iterations by release, with two dispatchers."""
    rows = []
    for (run, *words), times_s in BRIDGE_S.items():
        ours = [
            run_of((*words, f"parallelism.expert_dispatch={name}")).iteration_time_s
            for name in ("all_to_all", "hybridep")
        ]
        for release, published in times_s.items():
            errors = [signed(own / published - 1) for own in ours]
            rows.append([run, release, f"{published:.2f}", *errors])
    head = ["run", "release", "published, s", "error, `all_to_all`", "error, `hybridep`"]
    return table(head, rows)
