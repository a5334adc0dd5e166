"""Figures in the text of docs/what_ifs.md, by sweep and name."""

from collections.abc import Callable, Iterator
from typing import Protocol

from docs.update.request import percent, seconds
from docs.update.what_if_tables import GIB, Row, groups, price_of_a_million, ran, share, winners

_COMMUNICATION, _COMPUTE = "breakdown_tensor_communication_s", "breakdown_compute_s"


class Rows(Protocol):
    """Function that returns the rows of a sweep."""

    def __call__(self, overrides: tuple[str, ...] = (), only: str | None = None) -> list[Row]:
        """Return the rows with overrides, or of points that satisfy the constraint `only`."""


Figures = Iterator[tuple[str, str]]


def recompute_strategies(rows_of: Rows) -> Figures:
    """Yield the loss of MFU with longer sequences, and the number of points that do not fit."""
    rows = rows_of()
    yield "points", f"{len(rows)}"
    yield "not_fitting", f"{len(rows) - len(ran(rows))}"
    best = winners(rows, "mfu", "base", "model.seq_length")
    mfu = {(row["base"], row["model.seq_length"]): row["mfu"] for row in best}
    lost = [mfu[f"table5_{m}_present", 2048] - mfu[f"table5_{m}_present", 4096] for m in LARGEST]
    yield "lost", f"{100 * sum(lost) / len(lost):.0f}"


LARGEST = ("530b", "1t")


def pipeline_bubble(rows_of: Rows) -> Figures:
    """Yield the bubble of 12 chunks, with and without a head."""
    only = "interleave == 12 and global == 64"
    (row,) = rows_of(only=only)
    (headless,) = rows_of(("model.vocab_size=1024",), only)
    yield "bubble", share(row, "bubble")
    yield "headless", share(headless, "bubble")
    yield "formula", percent(7 / 768)
    yield "transfers", share(row, "pipeline_communication")


def hardware_generations(rows_of: Rows) -> Figures:
    """Yield gains in speed and price of newer machines."""
    best = {
        (row["base"], row["cluster"]): row
        for row in winners(rows_of(), "tokens_per_s", "base", "cluster")
    }
    models = sorted({base for base, _ in best})
    gains, savings = [], []
    for base in models:
        a100 = best[base, "a100_sxm4_80gb"]
        gains.append(best[base, "h100_sxm"]["tokens_per_s"] / a100["tokens_per_s"])
        savings += [
            1 - price_of_a_million(best[base, name]) / price_of_a_million(a100)
            for name in ("h100_sxm", "h200_sxm")
        ]
    yield "faster", f"{min(gains):.1f} to {max(gains):.1f}"
    yield "cheaper", f"{100 * min(savings):.0f} to {percent(max(savings), 0)}"
    none, selective = (
        max(
            row["tokens_per_s"]
            for row in ran(rows_of())
            if (row["base"], row["cluster"]) == ("table5_175b_present", "h200_sxm")
            and row["recompute"] == recompute
        )
        for recompute in ("none", "selective")
    )
    yield "without_recompute", percent(none / selective - 1)


def tensor_across_nodes(rows_of: Rows) -> Figures:
    """Yield the slowdown by tensor parallelism across two nodes."""
    best = {
        row["parallelism.tensor"]: row["iteration_time_s"]
        for row in winners(rows_of(), "tokens_per_s", "parallelism.tensor")
    }
    yield "two_nodes", percent(best[16] / best[8] - 1, 0)


def data_parallel_scaling(rows_of: Rows) -> Figures:
    """Yield the gain of overlapped gradient reductions, and the gain without latency."""

    def gains(*overrides: str) -> dict[int, float]:
        best = {
            (row["parallelism.data"], row["overlap.data_parallel"]): row["tokens_per_s"]
            for row in winners(
                rows_of(overrides), "tokens_per_s", "parallelism.data", "overlap.data_parallel"
            )
        }
        numbers = {number for number, _ in best}
        return {number: best[number, True] / best[number, False] for number in numbers - {1}}

    usual, instant = gains(), gains("hardware.inter_node.step_latency=0 s")
    number = max(usual, key=lambda one: usual[one])
    yield "most", f"{percent(usual[number] - 1, 0)} (with {8 * number:,} GPUs)"
    for replicas in (256, 512):
        yield f"slower_{8 * replicas}", percent(1 / usual[replicas] - 1, 0)
        yield f"without_latency_{8 * replicas}", percent(instant[replicas] - 1, 0)


def larger_batch(rows_of: Rows) -> Figures:
    """Yield the slowdown by recompute at a fixed batch, and the gain of a larger batch."""
    frees, costs = [], []
    for name, base in (("gpt2", "gpt2_1_5b"), ("22b", "table5_22b_present")):
        of_model = {
            group[0]["strategy"]: group
            for group in groups(rows_of(), "base", "strategy")
            if group[0]["base"] == base
        }
        none = of_model["baseline"][-1]
        same = {
            strategy: next(row for row in group if row["sequences"] == none["sequences"])
            for strategy, group in of_model.items()
        }
        full, selective = same["full"], same["selective"]
        yield f"{name}_full_costs", percent(1 - full["tokens_per_s"] / none["tokens_per_s"], 0)
        for strategy in ("full", "selective"):
            most = of_model[strategy][-1]
            yield (
                f"{name}_{strategy}_times",
                f"{int(most['sequences']) // int(none['sequences'])} times",
            )
            net = most["tokens_per_s"] / none["tokens_per_s"] - 1
            yield f"{name}_{strategy}_gains", percent(net, 0)
        freed = [none["peak_bytes"] - one["peak_bytes"] for one in (selective, full)]
        frees.append(freed[0] / freed[1])
        costs.append(selective["breakdown_recompute_s"] / full["breakdown_recompute_s"])
    yield "selective_frees", f"{100 * min(frees):.0f} to {percent(max(frees), 0)}"
    yield "selective_computes", f"{100 * min(costs):.0f} to {percent(max(costs), 0)}"


def context_parallel(rows_of: Rows) -> Figures:
    """Yield the gain of context parallelism, and its exposed communication."""
    rows = rows_of()
    best = winners(rows, "mfu", "parallelism.context", "recompute")
    alone, together = (
        max(row["mfu"] for row in best if (row["parallelism.context"] > 1) is divided)
        for divided in (False, True)
    )
    yield "faster", percent(together / alone - 1, 0)
    fields = "tensor", "context", "context_communication"
    named = {
        tuple(row[f"parallelism.{field}"] for field in fields): row
        for row in rows
        if row["recompute"] == "none"
    }
    ways = {
        "ring_of_2": (8, 2, "p2p"),
        "ring_of_8": (8, 8, "p2p"),
        "gathered": (4, 4, "all_gather"),
        "ring": (4, 4, "p2p"),
    }
    for name, way in ways.items():
        yield name, share(named[way], "tensor_communication")


def fp8(rows_of: Rows) -> Figures:
    """Yield effects of fp8 other than the time of its products."""
    found = {(row["products"], row["split"]): row for row in rows_of()}
    for name in ("bf16", "delayed"):
        row = found[name, "4 x 8 x 2"]
        yield f"{name}_compute", seconds(row[_COMPUTE])
        yield f"{name}_communication", seconds(row[_COMMUNICATION])
        yield f"{name}_wide_peak", f"{found[name, '4 x 4 x 4']['peak_bytes'] / GIB:.1f}"


def userbuffers(rows_of: Rows) -> Figures:
    """Yield the share of hidden communication that does not shorten the iteration."""
    lost = []
    for group in groups(rows_of(), "model.seq_length", "parallelism.tensor"):
        without, used = winners(group, "tokens_per_s", "overlap.userbuffers")
        gained_s = without["iteration_time_s"] - used["iteration_time_s"]
        lost.append(1 - gained_s / (without[_COMMUNICATION] - used[_COMMUNICATION]))
    yield "lost", f"{100 * min(lost):.0f} to {percent(max(lost), 0)}"


def grouped_queries(rows_of: Rows) -> Figures:
    """Yield savings of grouped queries."""
    found = {
        (row["model.num_query_groups"], row["sequences"], row["recompute"]): row
        for row in rows_of()
    }
    every, eight = (found[number, "64 of 8,192", "none"] for number in (64, 8))
    full, none = found[64, "32 of 16,384", "full"], found[8, "32 of 16,384", "none"]
    yield "parameters", f"{80 * 2 * 8192 * (64 - 8) * 128 / 1e9:.1f}B"
    yield "faster", percent(eight["tokens_per_s"] / every["tokens_per_s"] - 1)
    yield "mfu_of_all", percent(every["mfu"])
    yield "mfu_of_groups", percent(eight["mfu"])
    yield "slower", percent(1 - full["tokens_per_s"] / none["tokens_per_s"], 0)


def expert_parallel(rows_of: Rows) -> Figures:
    """Yield the gain of expert parallelism inside a node, and its slowdown across nodes."""
    four_stages = {
        row["parallelism.expert"]: row for row in rows_of() if row["parallelism.pipeline"] == 4
    }
    alone, node, two_nodes = (four_stages[ranks] for ranks in (1, 8, 16))
    yield "compute_alone", seconds(alone[_COMPUTE])
    yield "compute", seconds(node[_COMPUTE])
    yield "sends", seconds(node[_COMMUNICATION])
    yield "sends_over_two", seconds(two_nodes[_COMMUNICATION])
    yield "longer", percent(two_nodes["iteration_time_s"] / node["iteration_time_s"] - 1, 0)


FIGURES: dict[str, Callable[[Rows], Figures]] = {
    one.__name__: one
    for one in (
        recompute_strategies,
        pipeline_bubble,
        hardware_generations,
        tensor_across_nodes,
        data_parallel_scaling,
        larger_batch,
        context_parallel,
        fp8,
        userbuffers,
        grouped_queries,
        expert_parallel,
    )
}
