"""Ring self-attention, compared with the paper's closed forms and with counts by hand.

The paper is Li et al. 2021, "Sequence Parallelism: Long Sequence Training from System Perspective"
(arXiv 2105.13120). Its letters: B sequences, L tokens, Z heads of A channels, width H, N ranks.
"""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.base.mesh import Group
from simtrain.durations.collectives import total_wire_bytes
from simtrain.errors import InputError
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.scenario.parallelism import CONTEXT_EXCHANGES
from simtrain.studies.simulation import simulate
from simtrain.workload.blocks import attention
from simtrain.workload.ops import Op
from simtrain.workload.record import record_pass
from simtrain.workload.tape import Context, Microbatch, Tape
from simtrain.workload.work import Collective, CollectiveKind, Gemm
from tests.helpers.toys import (
    chunk_with,
    kept_bytes,
    layer_ops,
    ops_of,
    pass_with,
    plan_of,
    scenario_with,
)

(UNFUSED,) = (name for name, exchange in CONTEXT_EXCHANGES.items() if not exchange.is_fused)
B, L, Z, A = 3, 1024, 8, 64
"""Sequences, tokens, heads and channels of a head; 2 bytes per element."""


def ring(num_ranks: int, way: str = UNFUSED, **sections: Any) -> Scenario:
    """Return one layer on a ring of `num_ranks`, or of another exchange."""
    split: dict[str, Any] = {"context": num_ranks} | sections.pop("parallelism", {})
    if num_ranks > 1:
        split["context_communication"] = way
    is_fused = num_ranks > 1 and CONTEXT_EXCHANGES[way].is_fused
    model = {
        "num_layers": 1,
        "hidden_size": Z * A,
        "num_attention_heads": Z,
        "seq_length": L,
        "vocab_size": 1024,
    }
    return scenario_with(
        model | sections.pop("model", {}),
        parallelism=split,
        attention_backend="fused" if is_fused else "unfused",
        batch={"micro": B, "global": B},
        **sections,
    )


def both_ways(scenario: Scenario) -> list[Op]:
    """Return the ops of a layer, forward and then backward."""
    return [*itertools.chain(*layer_ops(scenario))]


def between_ranks(ops: Iterable[Op]) -> list[Op]:
    return [op for op in ops if isinstance(op.work, Collective) and op.work.group.axes == ("cp",)]


def product_flops(ops: Iterable[Op]) -> int:
    return sum(op.work.flops for op in ops if isinstance(op.work, Gemm))


# ------------------------------------------------------------------------------------ communication


def sent(scenario: Scenario) -> tuple[float, float]:
    """Return the bytes per layer that a rank sends to its peers, forward and backward."""
    forward, backward = map(between_ranks, layer_ops(scenario))
    return total_wire_bytes(forward), total_wire_bytes(backward)


@given(st.integers(2, 9), st.integers(1, 4), st.integers(1, 5), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_bytes_of_any_shape(ranks: int, tensor: int, heads: int, tokens: int) -> None:
    """With tensor parallelism, each rank has Z/t heads, and t rings run beside one another."""
    model = {
        "seq_length": ranks * tokens * tensor,
        "num_attention_heads": heads * tensor,
        "hidden_size": heads * tensor * 24,
        "vocab_size": 128 * tensor,
    }
    scenario = ring(ranks, model=model, parallelism={"tensor": tensor})
    block = 2 * B * heads * tokens * tensor * 24
    assert sent(scenario) == pytest.approx((2 * (ranks - 1) * block, 6 * (ranks - 1) * block))


def test_the_order_of_steps() -> None:
    """Two rings forward, and two rings and two all-reduces of all gradients backward."""
    forward, backward = (
        [(op.name, op.work.kind, op.work.array_bytes) for op in between_ranks(ops)]
        for ops in layer_ops(ring(4))
    )
    block, send, reduce = 2 * B * Z * (L // 4) * A, CollectiveKind.SEND, CollectiveKind.ALL_REDUCE
    keys, values = [("keys to next", send, block)] * 3, [("values to next", send, block)] * 3
    assert forward == keys + values
    sums = [(f"{name} gradients sum", reduce, 4 * block) for name in ("value", "key")]
    assert backward == [sums[0], *values, sums[1], *keys]


# --------------------------------------------------------------------------------------------- work


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_divide_the_products_of_all_pairs(num_ranks: int) -> None:
    """Two products forward and four backward, of 2 B Z L² A operations each: no mask skips any."""
    each, one = (product_flops(both_ways(ring(ranks))) for ranks in (num_ranks, 1))
    assert num_ranks * each == one
    ops = [op for op in both_ways(ring(num_ranks)) if isinstance(op.work, Gemm)]
    core = [op for op in ops if op.work.batch == B * Z]
    assert num_ranks * product_flops(core) == 6 * 2 * B * Z * L**2 * A
    alone, together = simulate(ring(1)), simulate(ring(num_ranks))
    assert together.model_flops == alone.model_flops
    assert together.num_parameters == alone.num_parameters


def test_nothing_overlaps() -> None:
    """`ring_forward` synchronizes the host after each step: the next kernel waits for the send, and
    so does its launch.
    """
    for kind in ("F", "B"):
        scenario = ring(4)
        for segment in record_pass(pass_with(scenario, chunk_with(scenario, 1), kind)).segments:
            for place, op in enumerate(segment.ops):
                if isinstance(op.work, Collective):
                    assert place in segment.waits[place + 1]
                    is_send = op.work.kind is CollectiveKind.SEND
                    assert op.informs_host == segment.ops[place + 1].needs_host == is_send


def test_a_rank_has_one_slice() -> None:
    """A slice needs no indices, so the only kernels are the copies."""
    scenario = ring(4)
    ops = ops_of(pass_with(scenario, chunk_with(scenario, batch=True), "F"))
    names = [op.name for op in ops if "slices" in op.name]
    assert names == [f"{name} slices" for name in ("inputs", "labels", "loss mask", "positions")]
    assert plan_of(ring(8, model={"seq_length": 1000})).microbatch.seq_length == 125


# ------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_saved_tensors_are_those_of_the_paper(num_ranks: int) -> None:
    """Table 2: 4 B Z L A / N elements of queries, keys, values and their output, and B Z L²/N
    scores. The output of the last product, B L H / N, is saved by nothing: a dropout follows.
    """
    scenario = ring(num_ranks, model={"attention_dropout": 0.0})
    ops = [op for op in layer_ops(scenario)[0] if op.saves]
    saved = {tensor.name: tensor.num_bytes for op in ops for tensor in op.saves}
    heads = {"query by head", "key by head", "value by head", "attention output"}
    assert sum(saved[name] for name in heads) == 2 * 4 * B * Z * L * A // num_ranks
    assert saved["softmax output"] == 2 * B * Z * L * L // num_ranks


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_saved_bytes_of_a_layer_are_divided(num_ranks: int, recompute: str) -> None:
    """A layer of the paper's kernels saves s b h (34 + 5 a s / h) bytes (Korthikanti et al. 2022,
    Equation 1); here, with s = L queries over N ranks and scores with all L keys, 1/N of them.
    """
    scenario = ring(num_ranks, recompute=recompute)
    chunk = chunk_with(scenario, 1)
    kept = kept_bytes(record_pass(pass_with(scenario, chunk, "F")))
    if recompute == "none":
        assert kept * num_ranks == L * B * (34 * Z * A + 5 * Z * L)
    else:
        assert kept * num_ranks == 2 * L * B * Z * A
    forward, backward = (pass_memory(pass_with(scenario, chunk, kind)) for kind in ("F", "B"))
    assert forward.remaining_bytes == backward.saved_bytes == kept
    assert backward.remaining_bytes == 0


def test_selective_recompute_keeps_keys_in_place_of_scores() -> None:
    """The core is recomputed with its rings: it saves its inputs, the output of the QKV product."""
    scenario = ring(4, recompute="selective")
    kept = kept_bytes(record_pass(pass_with(scenario, chunk_with(scenario, 1), "F")))
    assert 4 * kept == 34 * L * B * Z * A
    plain, again = (
        Counter(op.name for op in between_ranks(both_ways(ring(4, recompute=what))))
        for what in ("none", "selective")
    )
    assert again == plain + Counter({"keys to next": 3, "values to next": 3})


def test_working_tensors() -> None:
    """Gradients of all keys and values exist until those of queries, keys and values are joined."""
    ops = {op.name: op for op in both_ways(ring(4, model={"attention_dropout": 0.0}))}
    block, scores = 2 * B * Z * (L // 4) * A, 2 * B * Z * (L // 4) * L
    first = ops["QKᵀ"]
    # The QKV product, both copies, blocks to send and to receive, all scores, scores of a block.
    assert first.holds_bytes == 3 * block + 2 * block + 2 * block + scores + scores // 4
    # Gradients of all scores, values, keys, and queries; a product; blocks that circulate.
    last = ops["query gradient sum"]
    assert last.holds_bytes == scores + 2 * 4 * block + 2 * block + 2 * block
    assert {x.name for x in ops["query gradient mean"].reads} == {"query by head", "key by head"}


# --------------------------------------------------------------------------- with all other parts


def refused(*, fused: bool = False, groups: int | None = None) -> None:
    """Record attention of a user-defined layer on a ring of 2 ranks."""
    group = Group(("cp",), 2, 2)
    context = Context(group, Group(("cp",), 1, 1), group, UNFUSED)
    tape = Tape(Microbatch(16, 1, 48, Group(("tp",), 1, 1), context=context))
    attention(tape, tape.tensor("qkv", 16, 3 * 48), 8, groups, fused=fused)


def test_layers_that_it_does_not_support_are_refused() -> None:
    refused()
    with pytest.raises(InputError, match="E508 fused attention"):
        refused(fused=True)
    with pytest.raises(InputError, match="E508 ring self-attention needs as many"):
        refused(groups=3)
