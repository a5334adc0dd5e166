"""Products pipelined with their collectives: time, FLOPs, bytes and memory by hand."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.base.mesh import Group
from simtrain.durations.collectives import total_wire_bytes
from simtrain.engine import Engine
from simtrain.iteration.programs.pass_tasks import PassMachine, simulate_pass
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.blocks import column_linear, row_linear
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.ops import Tensor, total_flops
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.passes import Pass, PassKind, PassOptions, record_pass
from simtrain.workload.tape import Microbatch, Tape
from simtrain.workload.work import Collective, CollectiveKind, Gemm, Work
from tests.helpers.toys import chunk_with, layer_scenarios, pass_with, small

ON = OverlapPolicy(userbuffers=True)


@dataclass(frozen=True)
class Column:
    """One column-parallel layer with userbuffers."""

    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Gather the rank's rows and multiply all rows."""
        return column_linear(tape, x, 96, "QKV", bias=False)


@dataclass(frozen=True)
class Row:
    """A column-parallel layer without userbuffers, and a row-parallel layer with userbuffers."""

    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Gather the rank's rows, multiply all rows twice, and reduce-scatter them."""
        y = column_linear(tape, x, 96, "up", bias=False, has_userbuffers=False)
        return row_linear(tape, y, "projection", bias=False)


def record_of(block: Column | Row, kind: PassKind, num_ranks: int) -> PassRecord:
    batch = Microbatch(48, 1, 48, Group(("tp",), num_ranks, num_ranks), sequence_parallel=True)
    chunk, options = Chunk(((block, 1),)), PassOptions(batch, ON)
    return record_pass(Pass(chunk, kind, RecomputePolicy(), options))


def seconds_of(
    block: Column | Row,
    kind: PassKind,
    num_ranks: int,
    *,
    product_s: float = 1.0,
    link_s: float,
    engine: Engine = "auto",
) -> float:
    """Return the time of a pass. A whole product takes `product_s`, sending all rows `link_s`."""
    flops = 2 * 48 * 48 * 96 // num_ranks
    array_bytes = 48 * 48 * 2

    def seconds(work: Work) -> float:
        match work:
            case Gemm():
                return product_s * work.flops / flops
            case Collective(CollectiveKind.COPY, num_bytes, _):
                return link_s * num_bytes / array_bytes
            case Collective(_, num_bytes, group):
                return link_s * num_bytes / array_bytes * (1 - 1 / group.num_ranks)
        return 0.0

    machine = PassMachine(seconds, 0.0, lambda work: 0.0 if isinstance(work, Collective) else 1.0)
    return simulate_pass(record_of(block, kind, num_ranks), machine, engine).duration_s


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("link_s", [0.0, 0.5, 1.0, 3.0])
def test_a_column_parallel_layer_hides_the_exchange_of_chunks(
    num_ranks: int, link_s: float
) -> None:
    """With t = 2, half of the product overlaps with sending half of the rows. Then the other half
    runs alone.
    """
    chunk_s, sent_s = 1 / num_ranks, link_s / num_ranks
    forward_s = (num_ranks - 1) * max(chunk_s, sent_s) + chunk_s
    assert seconds_of(Column(), "F", num_ranks, link_s=link_s) == pytest.approx(forward_s)
    # In the backward pass, the gather and the reduce-scatter each overlap with a whole product.
    backward_s = 2 * max(1.0, link_s * (1 - 1 / num_ranks))
    assert seconds_of(Column(), "B", num_ranks, link_s=link_s) == pytest.approx(backward_s)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("link_s", [0.0, 0.5, 1.0, 3.0])
def test_a_row_parallel_layer_hides_three_chunks_of_four(num_ranks: int, link_s: float) -> None:
    """The reduce-scatter of the last of four chunks of columns is exposed. The backward pass
    gathers in a ring.
    """
    whole_s = link_s * (1 - 1 / num_ranks)
    before_s = seconds_of(Row(), "F", num_ranks, link_s=link_s) - whole_s - 1.0
    assert before_s == pytest.approx(1 / 4 + 3 * max(1 / 4, whole_s / 4) + whole_s / 4)
    chunk_s, sent_s = 1 / num_ranks, link_s / num_ranks
    ring_s = (num_ranks - 1) * max(chunk_s, sent_s) + chunk_s
    rest_s = 1.0 + 2 * max(1.0, whole_s)
    backward_s = seconds_of(Row(), "B", num_ranks, link_s=link_s)
    assert backward_s == pytest.approx(ring_s + rest_s)


def with_userbuffers(one: Pass) -> Pass:
    options = replace(one.options, overlap=replace(one.options.overlap, userbuffers=True))
    return replace(one, options=options)


@settings(max_examples=15)
@given(layer_scenarios(max_tensor=8), st.sampled_from(["F", "B"]))
def test_flops_and_bytes_are_those_of_whole_products(scenario: Scenario, kind: PassKind) -> None:
    scenario = scenario.replace({"model.hidden_size": 4 * scenario.model.hidden_size})
    off = pass_with(scenario, chunk_with(scenario, 1, head=True), kind)
    before, after = (record_pass(one) for one in (off, with_userbuffers(off)))
    assert total_flops(after.ops) == total_flops(before.ops)
    assert total_wire_bytes(after.ops) == pytest.approx(total_wire_bytes(before.ops), rel=1e-12)
    if not scenario.parallelism.sequence_parallel:
        assert [*before.ops] == [*after.ops]


def test_userbuffers_are_twelve_permanent_arrays() -> None:
    """With userbuffers, only the head uses Megatron-LM's global memory buffer."""
    scenario = small({"sequence_parallel": True}, overlap={"userbuffers": True})
    first, *_, last = simulate(scenario).memory.stages
    array_bytes = 2048 * 1 * 4096 * 2
    assert first.buffers_bytes["userbuffers"] == last.buffers_bytes["userbuffers"]
    assert first.buffers_bytes["userbuffers"] == 12 * array_bytes
    assert "userbuffers" not in simulate(small()).memory.stages[0].buffers_bytes
    fused = {"attention_backend": "fused", "cluster": "h100_sxm"}
    split = {"sequence_parallel": True, "context": 2}
    eight = small(split, overlap={"userbuffers": True}, precision={"compute": "fp8"}, **fused)
    (buffers, *_) = [stage.buffers_bytes for stage in simulate(eight).memory.stages]
    # A rank has half of the tokens. Eight arrays are gathered in fp8, four reduce-scattered in
    # bf16.
    assert buffers["userbuffers"] == (8 + 4 * 2) * array_bytes // 4
    assert "global memory buffer" not in buffers
