"""The sweeps that come with simtrain, and the page that tells of them."""

import dataclasses
import functools
import io
import pathlib
import re
import shlex
from collections import Counter

import pyarrow.parquet
import pytest
from pytest import MonkeyPatch

from simtrain.figures import style
from simtrain.resources import list_sweeps
from simtrain.scenario import RULES, Scenario
from simtrain.sweep import Plan, load_plan, run_part
from tests.helpers.command_line import ROOT, call
from tests.helpers.made_results import ran, row, write_results
from tests.helpers.what_if_tables import (
    GIB,
    LINK_AXES,
    TABLES,
    Row,
    groups,
    percent,
    share,
    winners,
)

PAGE = (ROOT / "docs/what_ifs.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^simtrain (sweep|plot) (.*)$", PAGE, re.MULTILINE)
TOLD = [shlex.split(words)[0] for name, words in COMMANDS if name == "sweep"]


@functools.cache
def plan_of(name: str) -> Plan:
    return load_plan(name)


@functools.cache
def scenarios_of(name: str) -> tuple[Scenario, ...]:
    """What a sweep evaluates: points that its constraints keep."""
    plan = plan_of(name)
    constraints = plan.readable_constraints()
    points = (plan.scenario(index) for index in range(plan.num_points))
    return tuple(point for point in points if all(rule.holds(point) for rule in constraints))


def is_legal(scenario: Scenario) -> bool:
    return not any(rule.check(scenario) for rule in RULES)


def test_the_page_tells_of_every_question() -> None:
    assert set(TOLD) <= set(list_sweeps())
    assert len(TOLD) == len(set(TOLD)) == PAGE.count("\n## ")


@pytest.mark.parametrize("name", TOLD)
def test_a_shipped_sweep_asks_something_that_can_be_answered(name: str) -> None:
    """Most of it is legal, and it is small enough for a second or two."""
    scenarios = scenarios_of(name)
    legal = Counter(is_legal(scenario) for scenario in scenarios)
    assert plan_of(name).description
    assert 15 <= len(scenarios) <= 250
    assert legal[True] >= 0.8 * len(scenarios)


@pytest.mark.parametrize("name", TOLD)
def test_its_plots_are_drawn_as_the_page_says(
    name: str, tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    """From made results with the sweep's own axes; tests/figures looks at the files."""
    drawn: list[str] = []
    monkeypatch.setattr(style, "save", lambda figure, path: drawn.append(path.name) or (path,))
    monkeypatch.chdir(tmp_path)
    plan = plan_of(name)
    (sweep,) = (words for command, words in COMMANDS if command == "sweep" and name in words)
    assert shlex.split(sweep) == [name, "--out", name]
    rows = [
        row(index, plan.cells(index), **ran(100 + index, 10 + index % 7, 8 + index))
        for index in range(plan.num_points)
    ]
    write_results(pathlib.Path(name), rows, part_size=50)
    plots = [words for command, words in COMMANDS if command == "plot" and name in words]
    assert plots
    for words in plots:
        done = call("plot", *shlex.split(words))
        assert (done.exit_code, done.stderr) == (0, "")
    assert drawn == ["heat_map", "pareto", "scaling"] * len(plots)


# ------------------------------------------------------------------------- the page's figures

# What is looked at of the two sweeps that take longest; of the others it is every point. The 530B
# and the 1T model are run where the page says that they are fastest, the others everywhere.
LOOKED_AT = {
    "recompute_strategies": "num_layers < 100 or micro == 1 and sequence_parallel and ("
    '(recompute == "selective" and seq_length == 2048) or '
    '(recompute == "full" and seq_length > 2048))',
    "pipeline_bubble": "global == 8 or global == 64 or global == 256 and interleave < 4",
}


@functools.cache
def rows_of(name: str, overrides: tuple[str, ...] = (), only: str | None = None) -> list[Row]:
    """The results of a sweep, or of the points that satisfy a constraint."""
    plan = load_plan(name, overrides)
    more = (only,) if only else ()
    plan = dataclasses.replace(plan, constraints=(*plan.constraints, *more))
    parts = (run_part(plan, number).content for number in range(plan.num_parts))
    return [row for one in parts for row in pyarrow.parquet.read_table(io.BytesIO(one)).to_pylist()]


def section_of(name: str) -> str:
    (found,) = (text for text in PAGE.split("\n## ") if f"simtrain sweep {name} " in text)
    return found


def table_of(name: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = re.findall(r"^\| (.*) \|$", section_of(name), re.MULTILINE)
    return [line.split(" | ") for line in lines[1:]]


def says(name: str, *words: str) -> None:
    """Whether a section has these words, wherever its lines break."""
    text = " ".join(section_of(name).split())
    for one in words:
        assert one in text


@pytest.mark.parametrize("name", TOLD)
def test_a_table_says_what_its_sweep_found(name: str) -> None:
    """To every digit; a cell whose points are not looked at here is left out."""
    found = list(TABLES[name](rows_of(name, only=LOOKED_AT.get(name))))
    told = table_of(name)
    assert len(found) == len(told) > 3
    for line, expected in zip(told, found, strict=True):
        assert [
            cell if known else "" for cell, known in zip(line, expected, strict=True)
        ] == expected


def test_the_bubble_that_stays_is_the_head() -> None:
    only = "interleave == 12 and global == 64"
    (row,) = rows_of("pipeline_bubble", only=only)
    (headless,) = rows_of("pipeline_bubble", ("model.vocab_size=1024",), only)
    says(
        "pipeline_bubble",
        f"microbatches {share(row, 'bubble')} are bubble",
        f"to nothing, {share(headless, 'bubble')} are, where the formula says {percent(7 / 768)}.",
        f"Each chunk adds transfers, {share(row, 'pipeline_communication')} of the iteration",
    )


@pytest.mark.parametrize("sweep", ["pipeline_bubble", "fp8", "expert_parallel"])
def test_the_picture_has_the_figures_of_the_table(sweep: str) -> None:
    (name,) = re.findall(r"\((\w+\.svg)\)", section_of(sweep))
    picture = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert len(picture) < 60_000
    for one in rows_of(sweep, only=LOOKED_AT.get(sweep)):
        assert one["status"] != "ok" or f"<!-- {one['mfu']:.1%} -->" in picture


def test_what_fp8_changes_beside_the_products() -> None:
    found = {(row["products"], row["split"]): row for row in rows_of("fp8")}
    bf16, ours = (found[name, "4 x 8 x 2"] for name in ("bf16", "delayed"))
    wide = [found[name, "4 x 4 x 4"]["peak_bytes"] / GIB for name in ("delayed", "bf16")]
    parts = "breakdown_compute_s", "breakdown_tensor_communication_s"
    computes, sends = (f"{ours[part]:.2f} s instead of {bf16[part]:.2f} s" for part in parts)
    says(
        "fp8",
        f"the compute of 4 × 8 × 2 takes {computes}",
        f"communication takes {sends}",
        f"4 × 4 × 4 needs {wide[0]:.1f} GiB where bf16 needs {wide[1]:.1f}.",
    )


def test_context_parallelism_is_worth_its_ring() -> None:
    rows = rows_of("context_parallel")
    picture = (ROOT / "docs/context_parallel.svg").read_text(encoding="utf-8")
    assert len(picture) < 60_000
    best = winners(rows, "mfu", "parallelism.context", "recompute")
    assert all(f"<!-- {one['mfu']:.1%} -->" in picture for one in best)
    alone, together = (
        max(row["mfu"] for row in best if (row["parallelism.context"] > 1) is divided)
        for divided in (False, True)
    )
    names = "tensor", "context", "context_communication"
    named = {
        tuple(row[f"parallelism.{name}"] for name in names): row
        for row in rows
        if row["recompute"] == "none"
    }
    ways = (8, 2, "p2p"), (8, 8, "p2p"), (4, 4, "all_gather"), (4, 4, "p2p")
    near, far, gathered, ring = (share(named[way], "tensor_communication") for way in ways)
    says(
        "context_parallel",
        f"are {together / alone - 1:.0%}".replace("%", " %") + " faster",
        f"{near} of the iteration are exposed communication with 2 ranks in the ring and {far}",
        f"exposes {gathered} instead of {ring} on the fastest split",
    )


def test_userbuffers_lose_some_of_what_they_hide() -> None:
    for group in groups(rows_of("userbuffers"), "model.seq_length", "parallelism.tensor"):
        without, used = winners(group, "tokens_per_s", "overlap.userbuffers")
        parts = "breakdown_tensor_communication_s", "iteration_time_s"
        hidden_s, gained_s = (without[part] - used[part] for part in parts)
        assert 0.25 < 1 - gained_s / hidden_s < 0.5
    says("userbuffers", "A quarter to a half of the hidden seconds", f"{12 * 2**27 / 2**30} GiB")


def hidden_gains(*overrides: str) -> list[float]:
    """What the best with the reduction hidden gains over the best without: 256 and 512 replicas."""
    found = rows_of("data_parallel_scaling", overrides, "data > 128")
    best = {
        (row["parallelism.data"], row["overlap.data_parallel"]): row["tokens_per_s"]
        for row in winners(found, "tokens_per_s", "parallelism.data", "overlap.data_parallel")
    }
    return [best[number, True] / best[number, False] for number in (256, 512)]


def test_hiding_the_reduction_fails_for_its_latency() -> None:
    slower = [f"{1 / gain - 1:.0%}".replace("%", " %") for gain in hidden_gains()]
    without = hidden_gains("hardware.inter_node.step_latency=0 s")
    faster = [f"{gain - 1:.0%}".replace("%", " %") for gain in without]
    says(
        "data_parallel_scaling",
        f"by {slower[0]} with 2,048 GPUs and by {slower[1]} with 4,096",
        f"would gain {faster[0]} and {faster[1]} there",
    )


def test_selective_recompute_frees_more_than_half_for_less_than_half() -> None:
    frees, costs = [], []
    for base, sequences in (("gpt2_1_5b", "4"), ("table5_22b_present", "1")):
        none, selective, full = (
            row
            for row in rows_of("larger_batch")
            if (row["base"], row["sequences"]) == (base, sequences)
        )
        freed = [none["peak_bytes"] - one["peak_bytes"] for one in (selective, full)]
        frees.append(freed[0] / freed[1])
        costs.append(selective["breakdown_recompute_s"] / full["breakdown_recompute_s"])
    assert min(frees) > 0.5
    says("larger_batch", f"for {min(costs):.0%}".rstrip("%") + f" to {max(costs):.0%}"[:-1] + " %")


def test_the_times_that_bandwidth_is_held_against() -> None:
    usual = ("300 GB/s", "200 Gb/s")
    one, eight = (
        row["iteration_time_s"]
        for row in rows_of("link_bandwidth")
        if tuple(row[axis] for axis in LINK_AXES) == usual
    )
    says("link_bandwidth", f"| one replica, {one:.2f} s | eight replicas, {eight:.2f} s |")


def test_groups_save_parameters_time_and_memory() -> None:
    found = {
        (row["model.num_query_groups"], row["sequences"], row["recompute"]): row
        for row in rows_of("grouped_queries")
    }
    picture = (ROOT / "docs/grouped_queries.svg").read_text(encoding="utf-8")
    every, eight = (found[groups, "64 of 8,192", "none"] for groups in (64, 8))
    assert f"<!-- {eight['tokens_per_s'] / 1e3:.1f}k -->" in picture
    full, none = found[64, "32 of 16,384", "full"], found[8, "32 of 16,384", "none"]
    slower = 1 - full["tokens_per_s"] / none["tokens_per_s"]
    says(
        "grouped_queries",
        f"save {80 * 2 * 8192 * (64 - 8) * 128 / 1e9:.1f}B parameters and train "
        f"{percent(eight['tokens_per_s'] / every['tokens_per_s'] - 1)} faster",
        f"from {percent(every['mfu'])} to {percent(eight['mfu'])}:",
        f"they train {slower:.0%}".replace("%", " %") + " slower than eight groups",
    )


def test_experts_are_divided_inside_a_node() -> None:
    four_stages = {
        row["parallelism.expert"]: row
        for row in rows_of("expert_parallel")
        if row["parallelism.pipeline"] == 4
    }
    alone, node, two_nodes = (four_stages[ranks] for ranks in (1, 8, 16))
    sends = "breakdown_tensor_communication_s"
    longer = f"{two_nodes['iteration_time_s'] / node['iteration_time_s'] - 1:.0%}"
    says(
        "expert_parallel",
        f"On four stages compute takes {alone['breakdown_compute_s']:.2f} s without",
        f"an expert gets {4096 * 8 // 128} tokens",
        f"and {node['breakdown_compute_s']:.2f} s on eight ranks",
        f"outweighs all-to-alls of {node[sends]:.2f} s.",
        f"Over two nodes all-to-alls take {two_nodes[sends]:.2f} s and the whole iteration "
        + longer.replace("%", " %"),
    )
