"""Dispatchers: bytes, times, multiprocessors and host waits, counted by hand."""

from typing import Any

import numpy as np
import pytest

from simtrain.base.mesh import Group
from simtrain.durations.collectives import wire_bytes
from simtrain.durations.model import DurationModel
from simtrain.engine import simulate as simulate_program
from simtrain.hardware.load import load_profile
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.programs.pass_tasks import PassMachine, pass_program
from simtrain.scenario import Scenario, check_scenario
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.studies.simulation import simulate
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.passes import MergedPass, MergedRecord, record_merged, record_pass
from simtrain.workload.work import CollectiveKind, Elementwise, TokenExchange
from tests.helpers.expert_models import HIDDEN, TOKENS, TOP_K, is_grouped, layer, moe
from tests.helpers.toys import plan_of

KERNELS = [name for name, dispatcher in DISPATCHERS.items() if dispatcher.needs_entry]
# Of 4 ranks with 2 of 8 experts each, a token misses one with C(6, 2) of C(8, 2) choices.
REACHED = 4 * (1 - 15 / 28)
ROWS = round(TOKENS * REACHED)
FP8: dict[str, Any] = {"compute": "fp8", "fp8_recipe": "blockwise", "fp8_dispatch": True}
WIDE: dict[str, Any] = {"hidden_size": 1024, "num_attention_heads": 8}


def split(
    dispatcher: str,
    grid: dict[str, Any] | None = None,
    experts: dict[str, Any] | None = None,
    **more: Any,
) -> Scenario:
    """Return a small layer with a dispatcher, on H100s."""
    return moe(experts, {"expert_dispatch": dispatcher} | (grid or {}), cluster="h100_sxm", **more)


def exchanges(scenario: Scenario, kind: Any = "F") -> dict[str, TokenExchange]:
    """Return the exchanges of tokens of a layer by name."""
    works = {op.name: op.work for op in layer(scenario, kind)}
    return {name: work for name, work in works.items() if isinstance(work, TokenExchange)}


@pytest.mark.parametrize("name", KERNELS)
def test_a_token_travels_once_to_each_rank_of_its_experts(name: str) -> None:
    """128 bytes of 64 channels; out also 8-byte indices and fp32 probabilities of 2 experts, and
    back the gradients of these.
    """
    there, back = (exchanges(split(name), kind) for kind in ("F", "B"))
    assert (ROWS, TOP_K, HIDDEN) == (119, 2, 64)
    sizes = {op: work.node_bytes for op, work in (there | back).items()}
    assert sizes == {
        "dispatch": 119 * (128 + 2 * 12),
        "combination": 119 * 128,
        "combination gradient": 119 * 128,
        "dispatch gradient": 119 * (128 + 2 * 4),
    }
    # All ranks share a node, to which a rank sends each token once.
    assert {work.network_bytes for work in there.values()} == {64 * 152, 64 * 128}
    assert {work.dispatcher for work in there.values()} == {name}
    ops = [*layer(split(name)), *layer(split(name), "B")]
    held = {op.holds_bytes for op in ops if isinstance(op.work, TokenExchange)}
    assert held == {(64 + 119) * 128}  # the tokens that are sent, and those that arrive


@pytest.mark.parametrize("name", KERNELS)
def test_a_token_crosses_the_network_once_for_each_node(name: str) -> None:
    """16 ranks with one of 16 experts on two nodes: a token with two experts reaches both nodes
    unless its second expert is one of the 7 others of the first one's node.
    """
    grid = {"data": 16, "expert": 16}
    (dispatch, combination) = exchanges(split(name, grid, {"num": 16})).values()
    nodes = round(TOKENS * (2 - 7 / 15))
    assert dispatch.network_bytes == nodes * 152
    assert combination.network_bytes == nodes * 128
    assert combination.node_bytes == TOKENS * TOP_K * 128


@pytest.mark.parametrize("name", KERNELS)
def test_all_ranks_of_an_expert_receive_its_tokens(name: str) -> None:
    """Two tensor-parallel ranks have half of the tokens and half of each expert."""
    scenario = split(name, {"tensor": 2, "data": 4, "expert": 4})
    work = exchanges(scenario)["combination"]
    assert work.group.num_ranks == 8
    assert work.node_bytes == round(TOKENS / 2 * REACHED * 2) * 128
    (up, _) = (op.work for op in layer(scenario) if is_grouped(op))
    assert up.rows == TOKENS * TOP_K  # type: ignore[union-attr]


def test_deepep_by_hand() -> None:
    """Ops of the forward pass between router and experts, with the bytes that they move."""
    names = [op.name for op in layer(split("deepep"))]
    start, end = names.index("auxiliary loss"), names.index("experts up")
    assert names[start + 1 : end] == [
        *("dispatch choice", "dispatch layout", "dispatch notify", "dispatch", "received map"),
        *("permute", "permute probabilities"),
    ]
    assert names[names.index("experts down") + 1 :][:2] == ["unpermute", "combination"]
    works = {op.name: op.work for op in layer(split("deepep"))}
    # Probabilities of 8 experts in 16 bits are read; 2 of them, in fp32 with an index, written.
    assert works["dispatch choice"] == Elementwise(64 * 8 * 2, 64 * 2 * 12)
    assert works["dispatch layout"] == Elementwise(64 * 2 * 8, 64 * 4)
    # The map of 2 experts, as booleans and fp32 probabilities.
    assert works["received map"] == Elementwise(119 * 2 * 12, 119 * 2 * 5)


def test_hybridep_gathers_the_map_of_all_tokens() -> None:
    works = {op.name: op.work for op in layer(split("hybridep"))}
    gather = works["routing map gather"]
    assert (gather.kind, gather.array_bytes) == (CollectiveKind.ALL_GATHER, 4 * 64 * 8)  # type: ignore[union-attr]
    assert works["dispatch scan"] == Elementwise(4 * 64 * 8, 119 * 2)


# --------------------------------------------------------------------------------------- seconds


ROW_BYTES = 2 * 7168


def exchange(
    name: str, ranks: int, node_bytes: int, network_bytes: int, row_bytes: int = ROW_BYTES
) -> TokenExchange:
    """Return an exchange of ranks on nodes of 8."""
    group = Group(("ep",), ranks, min(ranks, 8))
    work = CollectiveKind.ALL_TO_ALL, node_bytes, group, name, node_bytes, network_bytes
    return TokenExchange(*work, node_bytes // row_bytes)


@pytest.mark.parametrize(
    ("name", "node", "network"), [("deepep", 0.7775, 0.873), ("hybridep", 0.783, 0.868)]
)
def test_the_slower_of_nvlink_and_network_sets_the_time(
    name: str, node: float, network: float
) -> None:
    """450 GB/s of NVLink with 5 µs, and 50 GB/s of an adapter with 17 µs, of which an H100's
    kernels reach a fraction. Of 4 nodes, 3/4 of the bytes leave one.
    """
    model = DurationModel(load_profile("h100_sxm"))
    inside_s = 5e-6 + 448e6 / (450e9 * node)  # 31,250 rows of 7,168 channels
    assert model.seconds(exchange(name, 8, 448_000_000, 1)) == pytest.approx(inside_s)
    across_s = 17e-6 + 0.75 * 50e6 / (50e9 * network)
    work = exchange(name, 32, 100_000_000, 50_000_000)
    assert model.seconds(work) == pytest.approx(across_s)
    assert model.seconds(exchange(name, 32, 448_000_000, 50_000_000)) == pytest.approx(inside_s)
    assert wire_bytes(work) == 100_000_000 * 31 / 32  # all but its own part crosses NVLink last


def test_a_part_of_the_time_of_a_row_does_not_depend_on_its_bytes() -> None:
    """On a B200, 27 % of the 14,336 bytes' time: half of a row takes 0.27 + 0.73/2 of its time."""
    model = DurationModel(load_profile("b200_sxm"))
    latency_s = load_profile("b200_sxm").links.point_to_point.latency.value
    whole_s, half_s = (
        model.seconds(exchange("deepep", 8, 1000 * row, 1, row)) - latency_s
        for row in (ROW_BYTES, ROW_BYTES // 2)
    )
    assert half_s == pytest.approx((0.27 + 0.73 / 2) * whole_s)


@pytest.mark.parametrize(("name", "sms"), [("deepep", 20), ("hybridep", 16)])
def test_products_lose_the_multiprocessors_of_the_kernels(name: str, sms: int) -> None:
    """Beside a load of l a product runs at 1/(1 + l) of its speed, here (132 - sms)/132."""
    model = DurationModel(load_profile("h100_sxm"))
    load = model.device_load(exchange(name, 32, 1000, 1000))
    assert 1 / (1 + load) == pytest.approx((132 - sms) / 132)


# ------------------------------------------------------------------------------------------ fp8


@pytest.mark.parametrize("name", KERNELS)
def test_tokens_travel_in_fp8_with_their_scales(name: str) -> None:
    """One byte and 1/128 of an fp32 scale for each channel; what comes back stays bf16."""
    model, experts = WIDE | {"seq_length": 128}, {"ffn_hidden_size": 256}
    wide, plain = (
        split(name, experts=experts, model=model, precision=FP8 | {"fp8_dispatch": travels})
        for travels in (True, False)
    )
    check_scenario(wide)
    row, size, tokens, rows = 1024 * (1 + 4 / 128), 2 * 1024, 2 * 128, round(2 * 128 * REACHED)
    there, back = exchanges(wide), exchanges(wide, "B")
    assert there["dispatch"].node_bytes == rows * (row + 2 * 12)
    assert back["combination gradient"].node_bytes == rows * row
    assert there["combination"].node_bytes == rows * size
    assert back["dispatch gradient"].node_bytes == rows * (size + 2 * 4)
    kernels = {op.name: op.work for op in (*layer(wide), *layer(wide, "B"))}
    assert kernels["dispatch to fp8"].moved_bytes == tokens * (size + row)  # type: ignore[union-attr]
    # The permutation pads the rows of its two experts: by 7.5 each on average.
    padded = tokens * TOP_K + 15
    assert kernels["permute"].moved_bytes == 2 * padded * row  # type: ignore[union-attr]
    assert not any("padding" in kernel for kernel in kernels)
    assert "experts up input to fp8" not in kernels
    assert "experts up input to fp8" in {op.name for op in layer(plain)}
    # Products save the same copies of their inputs; the order of rows has 8 bytes for each.
    memory = [pass_memory(plan_of(one).layers_pass(1, "F")) for one in (wide, plain)]
    # HybridEP's permutation pads rows in bf16 too.
    padding = 0 if DISPATCHERS[name].pads_rows else 8 * 15
    assert memory[0].remaining_bytes == memory[1].remaining_bytes + padding
    assert pass_memory(plan_of(wide).layers_pass(1, "B")).remaining_bytes == 0


# -------------------------------------------------------------------------------- shared expert


@pytest.mark.parametrize("name", KERNELS)
def test_the_shared_expert_runs_during_the_exchanges(name: str) -> None:
    shared = {"shared_ffn_hidden_size": 4096}
    scenario = split(name, experts=shared, overlap={"shared_expert": True})
    names = [op.name for op in layer(scenario)]
    for exchange_name, kernel in (("dispatch", "up"), ("combination", "down")):
        place = names.index(exchange_name)
        assert names[place + 1] == f"shared expert {kernel}"
    wide = WIDE | {"seq_length": 1024}
    alone, beside = (
        simulate(
            split(name, experts=shared, model=wide, overlap={"shared_expert": hides})
        ).iteration_time_s
        for hides in (False, True)
    )
    assert beside < alone
    times = {simulate(scenario, engine=engine).iteration_time_s for engine in ("simpy", "compiled")}
    assert len(times) == 1


# ------------------------------------------------------------------------------------ host waits


def waits_of_host(scenario: Scenario, kind: Any = "F") -> list[tuple[str, str]]:
    """Return ops of a layer whose launch waits for the end of another op, with that op."""
    return host_waits_of(record_pass(plan_of(scenario).layers_pass(1, kind)))


def host_waits_of(record: PassRecord | MergedRecord) -> list[tuple[str, str]]:
    """Return ops whose launch waits for the end of another op, with that op."""
    machine = PassMachine(lambda work: 1e-6, 1e-6, lambda work: 1.0)
    graph, ops = pass_program(record, machine).graph, [*record.ops]
    waits = []
    for i, op in enumerate(ops):
        others = graph.after[graph.after_starts[2 * i] : graph.after_starts[2 * i + 1]]
        waits += [(op.name, ops[other // 2].name) for other in others.tolist() if other % 2]
    return waits


@pytest.mark.parametrize(
    ("name", "grid", "experts", "expected"),
    [
        ("all_to_all", {}, {}, [("dispatch", "token counts")]),
        ("all_to_all", {"expert": 1}, {}, [("sort by expert", "token counts")]),
        ("all_to_all", {}, {"capacity_factor": 1.25}, []),
        ("all_gather", {}, {}, [("permute", "token counts")]),
        ("deepep", {}, {}, [("dispatch", "dispatch notify")]),
        ("hybridep", {}, {}, [("dispatch", "dispatch scan")]),
    ],
)
def test_the_host_waits_for_the_counts_of_tokens(
    name: str, grid: dict[str, Any], experts: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """In the forward pass; the backward pass knows them. A capacity fixes all sizes."""
    assert waits_of_host(split(name, grid, experts)) == expected
    assert waits_of_host(split(name, grid, experts), "B") == []


def test_the_run_ahead_of_the_host_ends_at_the_counts() -> None:
    """With kernels of 100 µs and launches of 1 µs, the launch of the dispatch starts when the
    counts have ended, although the host could have launched it long before.
    """
    record = record_pass(plan_of(split("deepep")).layers_pass(1, "F"))
    names = [op.name for op in record.ops]
    counts, dispatch = names.index("dispatch notify"), names.index("dispatch")
    program = pass_program(record, PassMachine(lambda work: 1e-4, 1e-6, lambda work: 1.0))
    timeline = simulate_program(program)
    assert timeline.start_s[2 * dispatch] == timeline.end_s[2 * counts + 1]
    assert timeline.start_s[2 * dispatch - 2] < 1e-6 * dispatch
    # Later launches follow one after the other, those of both experts' products too.
    starts = timeline.start_s[2 * dispatch :: 2]
    num_kernels = [op.num_kernels for op in [*record.ops][dispatch:-1]]
    assert {1, 2} == {*num_kernels}
    assert np.diff(starts) == pytest.approx(1e-6 * np.array(num_kernels))


# --------------------------------------------------------------------------------- merged passes


def merged_record(scenario: Scenario) -> MergedRecord:
    """Record a forward pass beside a backward pass of a layer."""
    plan = plan_of(scenario)
    return record_merged(MergedPass(plan.layers_pass(1, "F"), plan.layers_pass(1, "B")))


@pytest.mark.parametrize("name", KERNELS)
def test_a_merged_pass_hides_the_exchanges(name: str) -> None:
    """The exchange of counts is part of the stretch before; the host waits in its own pass."""
    record = merged_record(split(name))
    names = [op.name for op in record.ops]
    cuts = [names.index(op) for op in ("combination gradient", "dispatch", "dispatch gradient")]
    assert cuts == sorted(cuts)
    assert names.index("dispatch") < names.index("experts down input gradient")
    assert host_waits_of(record) == waits_of_host(split(name))
    program = pass_program(record, PassMachine(lambda work: 1e-4, 1e-6, lambda work: 0.5))
    ends = {simulate_program(program, engine).makespan_s for engine in ("simpy", "compiled")}
    assert len(ends) == 1
