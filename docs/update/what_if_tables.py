"""Tables of docs/what_ifs.md, from the results of the sweeps.

Each function yields the lines of one table as lists of cells, first its head.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from docs.update.request import percent, seconds, signed_percent
from simtrain.hardware.load import load_profile
from simtrain.scenario import load_scenario
from simtrain.studies.cost import PRICE_COLUMN, cost_of_tokens

Row = dict[str, Any]
Lines = Iterable[list[str]]

GIB = 2**30
MODELS = {
    "gpt2_1_5b": "GPT-2 1.5B, 1 GPU",
    "table5_22b_present": "22B",
    "table5_175b_present": "175B",
    "table5_530b_present": "530B",
    "table5_1t_present": "1T",
}


def head(text: str) -> list[str]:
    return text.split(" | ")


def share(row: Row, part: str) -> str:
    return percent(row[f"breakdown_{part}_s"] / row["iteration_time_s"])


def ran(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok"]


def groups(rows: Iterable[Row], *columns: str) -> Iterator[list[Row]]:
    """Group the points that ran by the values of some columns, in the order of the grid."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in ran(rows):
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return iter(found.values())


def winners(rows: Iterable[Row], column: str, *by: str) -> list[Row]:
    """Return the row with the largest value in a column, for each group."""
    return [max(group, key=lambda row: row[column]) for group in groups(rows, *by)]


def recompute_strategies(rows: Sequence[Row]) -> Lines:
    yield head("model | 2048 tokens | 4096 tokens | 8192 tokens")
    best = winners(rows, "mfu", "base", "model.seq_length")
    for base, of_model in itertools.groupby(best, key=lambda row: row["base"]):
        ordered = sorted(of_model, key=lambda row: row["model.seq_length"])
        yield [
            MODELS[base],
            *(f"{one['strategy']}, {one['batch.micro']}, {percent(one['mfu'])}" for one in ordered),
        ]


def pipeline_bubble(rows: Sequence[Row]) -> Lines:
    yield head("chunks per stage | 8 microbatches | 64 microbatches | 256 microbatches")
    shown = {8: 1, 64: 2, 256: 3}
    for of_chunks in groups(rows, "parallelism.interleave"):
        cells = [str(of_chunks[0]["parallelism.interleave"]), "", "", ""]
        for row in of_chunks:
            if place := shown.get(row["batch.global"]):
                cells[place] = f"{share(row, 'bubble')}, {percent(row['mfu'])}"
        yield cells


def hardware_generations(rows: Sequence[Row]) -> Lines:
    yield head("model | GPUs | tokens/s | MFU | recompute and microbatch | USD per million tokens")
    for row in winners(rows, "tokens_per_s", "base", "cluster"):
        recompute = row["recompute"].replace("none", "no recompute")
        yield [
            MODELS[row["base"]],
            row["cluster"].split("_")[0].upper(),
            f"{row['tokens_per_s']:,.0f}",
            percent(row["mfu"]),
            f"{recompute}, microbatch {row['batch.micro']}",
            f"{price_of_a_million(row):.2f}",
        ]


def price_of_a_million(row: Row) -> float:
    scenario, profile = load_scenario(row["base"]), load_profile(row["cluster"])
    num_tokens = scenario.batch.global_ * scenario.model.seq_length
    tokens_per_s = num_tokens / row["iteration_time_s"]
    price = cost_of_tokens(scenario.num_gpus, tokens_per_s, profile)[PRICE_COLUMN]
    assert price is not None
    return price / 1e3


LINK_AXES = ("hardware.intra_node.bandwidth", "hardware.inter_node.adapter_bandwidth")
USUAL_LINKS = ("300 GB/s", "200 Gb/s")
LINKS = {
    "half the NVLink": ("150 GB/s", "200 Gb/s"),
    "twice the NVLink": ("600 GB/s", "200 Gb/s"),
    "half the InfiniBand": ("300 GB/s", "100 Gb/s"),
    "twice the InfiniBand": ("300 GB/s", "400 Gb/s"),
}


def link_bandwidth(rows: Sequence[Row]) -> Lines:
    times = {(row["replicas"], *(row[axis] for axis in LINK_AXES)): row for row in rows}
    usual = {number: times[number, *USUAL_LINKS]["iteration_time_s"] for number in ("one", "eight")}
    replicas = {"one": "one replica", "eight": "eight replicas"}
    yield ["change", *(f"{replicas[number]}, {seconds(usual[number])}" for number in usual)]
    for change, links in LINKS.items():
        cells = [change]
        for number, before_s in usual.items():
            changed_s = times[number, *links]["iteration_time_s"]
            cells.append(signed_percent(changed_s / before_s - 1))
        yield cells


def tensor_across_nodes(rows: Sequence[Row]) -> Lines:
    yield head(
        "tensor × pipeline | iteration, s | exposed tensor-parallel communication | bubble"
        " | peak, GiB"
    )
    for row in winners(rows, "tokens_per_s", "parallelism.tensor"):
        yield [
            f"{row['parallelism.tensor']} × {row['parallelism.pipeline']}",
            f"{row['iteration_time_s']:.2f}",
            share(row, "tensor_communication"),
            share(row, "bubble"),
            f"{row['peak_bytes'] / GIB:.1f}",
        ]


def data_parallel_scaling(rows: Sequence[Row]) -> Lines:
    yield head("GPUs | tokens/s | of the ideal")
    first, *_ = best = winners(rows, "tokens_per_s", "num_gpus")
    for row in best:
        ideal = first["tokens_per_s"] * row["num_gpus"] / first["num_gpus"]
        if row["num_gpus"] not in (16, 32):
            reached = percent(row["tokens_per_s"] / ideal, 0)
            yield [f"{row['num_gpus']:,}", f"{row['tokens_per_s']:,.0f}", reached]


STRATEGIES = {"baseline": "none", "selective": "selective", "full": "full"}


def larger_batch(rows: Sequence[Row]) -> Lines:
    yield head(
        "model | recompute | most sequences that fit | tokens/s"
        " | tokens/s at the batch that fits without recompute"
    )
    by_model: dict[str, int] = {}
    for group in groups(rows, "base", "strategy"):
        most = group[-1]
        # The first group of a model is without recompute. Its batch is that of the last column.
        fixed = by_model.setdefault(most["base"], int(most["sequences"]))
        as_before = next(row for row in group if int(row["sequences"]) == fixed)
        gpus = ", 8 GPUs" if most["base"] != "gpt2_1_5b" else ""
        yield [
            f"{MODELS[most['base']]}{gpus}",
            STRATEGIES[most["strategy"]],
            most["sequences"],
            f"{most['tokens_per_s']:,.0f}",
            f"{as_before['tokens_per_s']:,.0f}",
        ]


def context_parallel(rows: Sequence[Row]) -> Lines:
    yield head(
        "context | no recompute: tensor | tokens/s | peak, GiB | full recompute: tensor"
        " | tokens/s | peak, GiB"
    )
    best = {
        (row["parallelism.context"], row["recompute"]): row
        for row in winners(ran(rows), "tokens_per_s", "parallelism.context", "recompute")
    }
    for context in (1, 2, 4, 8, 16):
        cells = [str(context)]
        for recompute in ("none", "full"):
            row = best.get((context, recompute))
            if row is None:
                cells += ["does not fit", "", ""]
                continue
            gathers = row["parallelism.context_communication"] == "all_gather"
            cells += [
                f"{row['parallelism.tensor']}{', gathered' if gathers else ''}",
                f"{row['tokens_per_s']:,.0f}",
                f"{row['peak_bytes'] / GIB:.1f}",
            ]
        yield cells


def fp8(rows: Sequence[Row]) -> Lines:
    yield head("products | fastest that fits | tokens/s | against bf16 | MFU | peak, GiB")
    best = winners(rows, "tokens_per_s", "products")
    bf16 = best[0]["tokens_per_s"]
    for row in best:
        yield [
            row["products"],
            row["split"].replace("x", "×"),
            f"{row['tokens_per_s']:,.0f}",
            f"{row['tokens_per_s'] / bf16:.2f}",
            percent(row["mfu"]),
            f"{row['peak_bytes'] / GIB:.1f}",
        ]


def userbuffers(rows: Sequence[Row]) -> Lines:
    yield head(
        "tokens per sequence | tensor | without: tokens/s | exposed within layers"
        " | with: tokens/s | exposed within layers | gain"
    )
    for group in groups(rows, "model.seq_length", "parallelism.tensor"):
        without, used = winners(group, "tokens_per_s", "overlap.userbuffers")
        cells = [str(used[name]) for name in ("model.seq_length", "parallelism.tensor")]
        for row in (without, used):
            cells += [f"{row['tokens_per_s']:,.0f}", share(row, "tensor_communication")]
        gain = used["tokens_per_s"] / without["tokens_per_s"] - 1
        yield [*cells, signed_percent(gain)]


QUERY_GROUPS = (64, 32, 16, 8)
SEQUENCES = {"64 of 8,192": "none", "32 of 16,384": "none", "16 of 32,768": "full"}


def grouped_queries(rows: Sequence[Row]) -> Lines:
    yield head(
        "groups | 64 sequences of 8,192 tokens | 32 of 16,384 | 16 of 32,768, full recompute"
    )
    found = {
        (row["model.num_query_groups"], row["sequences"], row["recompute"]): row
        for row in ran(rows)
    }
    for number in QUERY_GROUPS:
        cells = [str(number)]
        for sequences, recompute in SEQUENCES.items():
            row = found.get((number, sequences, recompute))
            if row is None:
                cells.append("does not fit")
            else:
                cells.append(f"{row['tokens_per_s']:,.0f}, {row['peak_bytes'] / GIB:.1f}")
        yield cells


def expert_parallel(rows: Sequence[Row]) -> Lines:
    yield head(
        "ranks on nodes | pipeline × data | tokens/s | MFU | exposed all-to-alls"
        " | exposed reduction of gradients | peak, GiB"
    )
    best = winners(rows, "tokens_per_s", "parallelism.expert")
    for row in sorted(best, key=lambda row: row["parallelism.expert"]):
        ranks = row["parallelism.expert"]
        yield [
            f"{ranks} on {max(1, ranks // 8)}",
            f"{row['parallelism.pipeline']} × {row['parallelism.data']}",
            f"{row['tokens_per_s']:,.0f}",
            percent(row["mfu"]),
            share(row, "tensor_communication"),
            share(row, "data_communication"),
            f"{row['peak_bytes'] / GIB:.1f}",
        ]


TABLES: dict[str, Callable[[Sequence[Row]], Lines]] = {
    one.__name__: one
    for one in (
        recompute_strategies,
        pipeline_bubble,
        hardware_generations,
        link_bandwidth,
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
