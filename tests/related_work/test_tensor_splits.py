"""Splits of the layers' matrices: bytes, FLOPs and memory of the closed forms of their papers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.mesh import Group, Mesh
from simtrain.durations.collectives import collective_seconds, total_wire_bytes, wire_bytes
from simtrain.engine import Engine
from simtrain.iteration.programs.pass_tasks import PassMachine, simulate_pass
from simtrain.related_work.grids import GridSplit
from simtrain.related_work.tensor_grid import TensorGrid
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.parallelism import TENSOR_SPLITS, TensorSplit
from simtrain.studies.simulation import simulate
from simtrain.workload.blocks import column_linear
from simtrain.workload.chunk import Chunk, layer_parameters
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.ops import Op, Phase, Tensor, total_flops
from simtrain.workload.passes import Pass, PassKind, PassOptions
from simtrain.workload.record import record_pass
from simtrain.workload.tape import Microbatch, Tape
from simtrain.workload.work import Collective, CollectiveKind, Gemm, Work
from tests.helpers.toys import (
    a100,
    chunk_with,
    layer_ops,
    pass_with,
    plan_of,
    saved_bytes,
    scenario_with,
    shape_of,
    waits_of,
)


def small_grid(split: TensorSplit) -> dict[str, int]:
    """Return the smallest grid of a split on which each axis has several ranks."""
    for ranks in range(4, 65):
        sizes = split.sizes(ranks)
        if sizes and min(sizes.values()) > 1:
            return {"tensor": ranks}
    raise AssertionError(f"{split.name} has no grid of at most 64 ranks")


GRIDS = {name: small_grid(split) for name, split in TENSOR_SPLITS.items()}


def split_scenario(name: str, grid: dict[str, int] | None = None, **sections: object) -> Scenario:
    """Return one layer of GPT on a grid of ranks, whose sizes they divide."""
    model = {"num_layers": 1, "hidden_size": 1152, "num_attention_heads": 24, "seq_length": 256}
    split = {"tensor_split": name, **(grid or GRIDS[name])}
    others = {"batch": {"micro": 36, "global": 36}} | sections
    return scenario_with(model | {"vocab_size": 51840}, parallelism=split, **others)


def sums_of_norms(ops: tuple[Op, ...]) -> list[Op]:
    """Return the all-reduces of norms, which the closed forms of layers leave out."""
    return [op for op in ops if "norm" in op.name and isinstance(op.work, Collective)]


@given(st.integers(2, 12), st.integers(1, 5), st.integers(1, 40), st.integers(1, 60))
def test_a_hidden_split_moves_and_saves_what_sequence_parallelism_does(
    t: int, heads: int, channels: int, length: int
) -> None:
    """Table 2 with sequence parallelism, besides the sums of two norms.

    Each norm adds two fp32 numbers per token in each direction: 8sb bytes, all-reduced four times.
    """
    model = {
        "num_layers": 1,
        "hidden_size": t * heads * channels,
        "num_attention_heads": t * heads,
        "seq_length": t * length,
        "vocab_size": t,
    }
    split = scenario_with(model, parallelism={"tensor": t, "tensor_split": "hidden"})
    sequence = scenario_with(model, parallelism={"tensor": t, "sequence_parallel": True})
    (forward, backward), (other, other_back) = layer_ops(split), layer_ops(sequence)
    ops, others = forward + backward, other + other_back
    sums = sums_of_norms(ops)
    norms_bytes = 4 * 2 * Fraction(t - 1, t) * 8 * t * length
    assert total_wire_bytes(sums) == norms_bytes
    assert total_wire_bytes(ops) - norms_bytes == total_wire_bytes(others)
    without = total_wire_bytes(ops, include_extra=False) - norms_bytes
    assert without == total_wire_bytes(others, include_extra=False)
    assert total_flops(ops) == total_flops(others)
    assert saved_bytes(forward) == saved_bytes(other)


@pytest.mark.parametrize(
    ("name", "of_weights", "of_vectors"),
    [("hidden", 4, 4), ("2d", 4, 4), ("3d", 8, 2)],
)
def test_parameters_of_a_layer_on_a_rank(name: str, of_weights: int, of_vectors: int) -> None:
    """Weights have 12h² elements; biases and weights of norms 13h."""
    scenario, h = split_scenario(name), 1152
    number = layer_parameters(chunk_with(scenario, 1), plan_of(scenario).microbatch)[0].total
    assert number == 12 * h**2 / of_weights + 13 * h / of_vectors


@pytest.mark.parametrize("name", TENSOR_SPLITS)
def test_stages_send_each_part_of_a_hidden_state_once(name: str) -> None:
    two_stages = {"parallelism.pipeline": 2, "model.num_layers": 2}
    scenario = split_scenario(name).replace(two_stages)
    assert plan_of(scenario).sent_bytes * scenario.parallelism.tensor == 2 * 36 * 256 * 1152
    assert plan_of(scenario).receive_gather is None


@pytest.mark.parametrize("name", TENSOR_SPLITS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_split_keeps_the_flops_of_the_model(name: str, recompute: str, pipeline: int) -> None:
    split = GRIDS[name] | {"tensor_split": name, "pipeline": pipeline}
    whole = {"tensor": 4, "pipeline": pipeline}
    model = {"num_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 64}
    batch = {"micro": 4, "global": 8}
    runs = [
        simulate(scenario_with(model, parallelism=way, batch=batch, recompute=recompute), a100())
        for way in (split, whole)
    ]
    assert runs[0].model_flops == runs[1].model_flops
    assert runs[0].hardware_flops == runs[1].hardware_flops


@st.composite
def layers_on_squares(draw: st.DrawFn) -> Scenario:
    """Draw a layer of GPT on q x q ranks."""
    q = draw(st.integers(2, 4))
    grid = {"tensor_split": "2d", "tensor": q**2}
    return drawn_layer(draw, grid, q, sequences=q, vocab=q)


@st.composite
def layers_on_cubes(draw: st.DrawFn) -> Scenario:
    """Draw a layer of GPT on q x q x q ranks."""
    q = draw(st.integers(2, 3))
    grid = {"tensor": q**3, "tensor_split": "3d"}
    return drawn_layer(draw, grid, q, sequences=q**2, vocab=q**2)


def drawn_layer(
    draw: st.DrawFn, grid: Mapping[str, object], q: int, *, sequences: int, vocab: int
) -> Scenario:
    micro, heads = sequences * draw(st.integers(1, 3)), q * draw(st.integers(1, 4))
    return scenario_with(
        {
            "num_layers": 1,
            "hidden_size": q * heads * draw(st.integers(1, 20)),
            "num_attention_heads": heads,
            "seq_length": draw(st.integers(1, 60)),
            "vocab_size": vocab,
        },
        parallelism=grid,
        batch={"micro": micro, "global": micro},
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )


def moved_blocks(ops: Iterable[Op]) -> list[Op]:
    """Return the collectives on blocks of matrices, without those of vectors and norms."""
    return [
        op
        for op in ops
        if isinstance(op.work, Collective) and not {"norm", "bias"} & {*op.name.split()}
    ]


def elements_of(ops: Iterable[Op]) -> int:
    """Return the elements of the arrays of collectives on 16-bit numbers."""
    return sum(op.work.array_bytes for op in ops if isinstance(op.work, Collective)) // 2


def flops_by_hand(scenario: Scenario) -> Fraction:
    """Return the FLOPs of a layer, forward and backward (Korthikanti et al. 2022, Appendix A)."""
    shape = shape_of(scenario)
    s, b, h = shape.seq_length, shape.microbatch, shape.hidden
    flops = {"selective": (72, Fraction(2, 9)), "full": (96, Fraction(1, 6))}
    factor, attention = flops.get(scenario.recompute.strategy, (72, Fraction(1, 6)))
    return factor * s * b * h**2 * (1 + attention * Fraction(s, h))


@given(layers_on_squares())
def test_layers_of_squares_move_the_blocks_of_optimus(scenario: Scenario) -> None:
    """(7bsh + 12h²) / q elements forward, which a tree sends log2 q times (Xu, Li et al. 2021).

    By hand: q steps move h²/q² of each h x h weight and bs h/q² of each activation. A layer has
    12 such weights, and the inputs of its four linear layers have bsh, bsh, bsh and 4bsh elements.
    A backward pass moves twice as many, or three times as many with recompute. All ranks
    together send 3 (q - 1) (S_X + S_W) elements for each layer Y = X W: on a ring, 6 (q - 1) / q of
    a matrix's part for a forward and a backward pass (Colossal-AI's table for 2D).
    """
    shape, q = shape_of(scenario), isqrt(scenario.parallelism.tensor)
    s, b, h, a = shape.seq_length, shape.microbatch, shape.hidden, shape.heads
    forward, backward = layer_ops(scenario)
    of_layer = Fraction(7 * b * s * h + 12 * h**2, q)
    recompute = scenario.recompute.strategy
    passes = 3 if recompute == "full" else 2
    moved = moved_blocks(forward + backward)
    assert elements_of(moved_blocks(forward)) == of_layer
    assert elements_of(moved) == (1 + passes) * of_layer
    assert q**2 * total_wire_bytes(moved) == 2 * (1 + passes) * (q - 1) * q * of_layer
    scores = Fraction(5 * a * s, h) if recompute == "none" else 0
    saved = 2 if recompute == "full" else 34 + scores
    assert saved_bytes(forward) == Fraction(s * b * h, q**2) * saved
    assert total_flops(forward + backward) == flops_by_hand(scenario) / q**2


@given(layers_on_cubes())
def test_a_three_dimensional_split_sends_three_matrices_twice(scenario: Scenario) -> None:
    """2 (q - 1) (S_X + S_A + S_Y) elements of each layer over all ranks (Colossal-AI's table).

    By hand: inputs of a layer's four linear layers have 7bsh elements, their outputs 9bsh, and
    their weights 12h². With recompute, the forward pass runs twice. The blocks that are gathered
    and saved, inputs and weights, are 1/q² of each matrix; other activations are 1/q³.
    """
    shape, q = shape_of(scenario), round(scenario.parallelism.tensor ** (1 / 3))
    s, b, h, a = shape.seq_length, shape.microbatch, shape.hidden, shape.heads
    forward, backward = layer_ops(scenario)
    recompute = scenario.recompute.strategy
    passes = 3 if recompute == "full" else 2
    sent = q**3 * total_wire_bytes(moved_blocks(forward + backward)) / 2
    assert sent == pytest.approx(passes * (q - 1) * (16 * b * s * h + 12 * h**2), rel=1e-12)
    scores = Fraction(5 * a * s, h) if recompute == "none" else 0
    saved = Fraction(s * b * h, q**3) * (20 + scores)
    saved += Fraction(14 * s * b * h + 24 * h**2, q**2)
    if recompute == "full":
        saved = Fraction(2 * s * b * h, q**3)
    assert saved_bytes(forward) == saved
    assert total_flops(forward + backward) == flops_by_hand(scenario) / q**3


def test_vectors_and_norms_of_a_two_dimensional_split() -> None:
    """Ranks of a column gather biases and weights of norms: 13h parameters of a layer."""
    scenario = split_scenario("2d")
    forward, backward = layer_ops(scenario)
    vectors = [
        op
        for op in forward + backward
        if isinstance(op.work, Collective) and op not in moved_blocks((op,))
    ]
    sums = [op for op in vectors if op.work.kind is CollectiveKind.ALL_REDUCE]  # type: ignore[union-attr]
    h, tokens, q = 1152, 36 * 256, 2
    assert [op.work.array_bytes for op in sums] == [8 * tokens // q] * 4  # type: ignore[union-attr]
    others = [op for op in vectors if op not in sums]
    gathered = [op for op in others if op.phase is Phase.FORWARD]
    assert elements_of(gathered) == elements_of(others) / 2 == 13 * h / q


def test_steps_of_a_product_move_the_next_blocks_beside_it() -> None:
    """With instant links of no latency, a forward product waits for its own blocks only."""
    record = record_pass(
        pass_with(scenario := split_scenario("2d", {"tensor": 9}), chunk_with(scenario, 1), "F")
    )
    waits, names = waits_of(record), [op.name for op in record.ops]
    products = [place for place, name in enumerate(names) if name == "QKV"]
    arrived = [[names[wait] for wait in waits[place]] for place in products]
    assert arrived == [["QKV input broadcast", "QKV weight broadcast"]] * 3
    launched = [place for place, name in enumerate(names) if name in ("QKV input broadcast",)]
    assert launched[1] < products[0] < launched[2] < products[1] < products[2]


@dataclass(frozen=True)
class First:
    """One first layer of attention or MLP."""

    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Multiply the rank's blocks."""
        return column_linear(tape, x, 96, "QKV", bias=False)


def seconds_of(kind: PassKind, q: int, *, product_s: float, link_s: float, engine: Engine) -> float:
    """Return the time of a pass on q x q ranks. All products are as long, and all moves."""
    grid = TensorGrid.on(
        Mesh(tp=q**2), cast(GridSplit, TENSOR_SPLITS["2d"]), {"column": q, "row": q}
    )
    batch = Microbatch(16, 4, 48 // q, grid.group(("column",)), grid=grid)
    batch = replace(batch, kernels=replace(batch.kernels, fused_gradient_accumulation=True))

    def seconds(work: Work) -> float:
        return {Gemm: product_s, Collective: link_s}.get(type(work), 0.0)

    options = PassOptions(batch, OverlapPolicy())
    record = record_pass(Pass(Chunk(((First(), 1),)), kind, RecomputePolicy(), options))
    return simulate_pass(record, PassMachine(seconds, 0.0, lambda work: 0.0), engine).duration_s


@given(
    st.sampled_from([2, 3, 4, 6]),
    st.floats(0, 9),
    st.floats(0, 9),
    st.sampled_from(["auto", "simpy"]),
)
def test_broadcasts_hide_behind_the_products_of_other_steps(
    q: int, product_s: float, link_s: float, engine: Engine
) -> None:
    """Two broadcasts per step: q of the longer of products and broadcasts, one of the shorter.

    A backward pass with instant links has 2q products, and one with instant products 4q moves.
    """
    moved_s = 2 * link_s
    expected_s = q * max(product_s, moved_s) + min(product_s, moved_s)
    times = {"product_s": product_s, "link_s": link_s}
    assert seconds_of("F", q, **times, engine=engine) == pytest.approx(expected_s)
    instant = seconds_of("B", q, product_s=product_s, link_s=0.0, engine=engine)
    assert instant == pytest.approx(2 * q * product_s)
    linked = seconds_of("B", q, product_s=0.0, link_s=link_s, engine=engine)
    assert linked == pytest.approx(4 * q * link_s)


@given(st.integers(2, 16), st.integers(1, 10**9), st.sampled_from(["broadcast", "reduce"]))
def test_a_chain_of_ranks_sends_the_array_over_each_link(n: int, size: int, kind: str) -> None:
    """As long as a ring's all-gather or reduce-scatter of n/(n - 1) times the array."""
    ring = {"broadcast": "all_gather", "reduce": "reduce_scatter"}[kind]
    for ranks_per_node in (n, 1):
        group = Group(("tp",), n, ranks_per_node)
        rooted = Collective(CollectiveKind(kind), size, group)
        whole = Collective(CollectiveKind(ring), size * n // (n - 1), group)
        profile = a100()
        assert collective_seconds(rooted, profile) == collective_seconds(whole, profile)
        assert wire_bytes(rooted) == pytest.approx(size * (n - 1) / n)
