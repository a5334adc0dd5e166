"""Context parallelism, compared with counts by hand: FLOPs, sent and saved bytes, and time."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.base.mesh import Group, Mesh
from simtrain.durations.collectives import total_wire_bytes
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.ops import Op
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, Elementwise, FusedAttention
from tests.helpers.lifetimes import by_hand, bytes_of
from tests.helpers.toys import (
    SMALL_MODEL,
    chunk_with,
    kept_bytes,
    layer_ops,
    pass_with,
    plan_of,
    scenario_with,
)

WAYS = ("p2p", "all_gather", "a2a", "a2a+p2p")
MODEL = SMALL_MODEL | {"num_query_groups": 8}


def divided(ranks: int, way: str = "p2p", **sections: Any) -> Scenario:
    """Return a small scenario with `ranks` context-parallel ranks, in pairs for a2a+p2p."""
    split: dict[str, Any] = {"context": ranks} | sections.pop("parallelism", {})
    if ranks > 1:
        split["context_communication"] = way
    if ranks > 1 and way == "a2a+p2p":
        split["context_a2a"] = 2
    model = MODEL | sections.pop("model", {})
    return scenario_with(model, parallelism=split, attention_backend="fused", **sections)


def both_ways(scenario: Scenario) -> tuple[Op, ...]:
    """Return the ops of a layer, forward and then backward."""
    return tuple(itertools.chain(*layer_ops(scenario)))


def attention_flops(ops: Iterable[Op]) -> int:
    return sum(op.work.flops for op in ops if isinstance(op.work, FusedAttention))


def between_context_ranks(ops: Iterable[Op]) -> list[Op]:
    return [op for op in ops if isinstance(op.work, Collective) and op.work.group.axes == ("cp",)]


# ----------------------------------------------------------------------------------- FLOPs and time


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_ranks", [4, 8])
def test_context_parallelism_divides_the_flops_of_attention(way: str, num_ranks: int) -> None:
    one, each = both_ways(divided(1)), both_ways(divided(num_ranks, way))
    assert num_ranks * attention_flops(each) == attention_flops(one)
    alone, together = simulate(divided(1)), simulate(divided(num_ranks, way))
    assert together.model_flops == alone.model_flops
    assert together.hardware_flops == alone.hardware_flops
    assert together.num_parameters == alone.num_parameters


@pytest.mark.parametrize("way", ["p2p", "a2a+p2p"])
def test_context_parallelism_divides_latent_attention_too(way: str) -> None:
    """Keys have 192 channels and values 128, so a block has 320 channels per token and head."""
    latent = {"num_query_groups": 32, "latent_attention": {"kv_lora_rank": 512}}
    one, each = (both_ways(divided(ranks, way, model=latent)) for ranks in (1, 4))
    assert 4 * attention_flops(each) == attention_flops(one)
    sends = [op.work.array_bytes for op in between_context_ranks(each) if "to next" in op.name]
    blocks = {"p2p": [2 * 512 * 32 * 320] * 3, "a2a+p2p": [2 * 1024 * 16 * 320]}
    assert sends == blocks[way]


@given(st.integers(2, 64), st.integers(1, 64), st.booleans())
def test_a_block_and_the_remaining_scores_sum_to_the_whole(
    size: int, more: int, is_backward: bool
) -> None:
    """The last queries attend to all earlier keys, and to their own with a causal mask."""
    whole = FusedAttention(4, size, 64, is_backward, kv_length=size + more)
    before = FusedAttention(4, size, 64, is_backward, kv_length=more, is_causal=False)
    own = FusedAttention(4, size, 64, is_backward)
    assert whole.flops == before.flops + own.flops
    assert whole.model_flops == before.model_flops + own.model_flops
    assert own.flops * 2 == (5 if is_backward else 2) * 2 * 4 * size**2 * 64


# ------------------------------------------------------------------------------------ communication


def sent(scenario: Scenario) -> tuple[float, float]:
    """Return the bytes per layer that a rank sends to context-parallel peers, in both passes."""
    forward, backward = map(between_context_ranks, layer_ops(scenario))
    return total_wire_bytes(forward), total_wire_bytes(backward)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_bytes_by_hand(num_ranks: int) -> None:
    """A rank of a ring sends n - 1 blocks of K and V, and in the backward pass also their gradients
    (Li et al. 2021). All-gathers send the same bytes. All-to-alls send (n - 1)/n of Q, K, V and the
    output.
    """
    tokens, rest = 2048 // num_ranks, num_ranks - 1
    query, key = 2 * tokens * 4096, 2 * tokens * 1024
    ring = rest * 2 * key
    assert sent(divided(num_ranks)) == (ring, 2 * ring)
    assert ring == 2 * rest * (2 * 2048 * 1024) / num_ranks
    assert sent(divided(num_ranks, "all_gather")) == (ring, 2 * ring)
    heads = 2 * (query + key) * rest / num_ranks
    assert sent(divided(num_ranks, "a2a")) == (heads, heads)


@pytest.mark.parametrize("stack", ["torchtitan", "torchtitan_compiled"])
@pytest.mark.parametrize("way", ["p2p", "all_gather"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_torchs_ring_by_hand(num_ranks: int, way: str, stack: str) -> None:
    """Heads are repeated: a block has 4,096 channels of keys and of values. Gradients are sent in
    fp32, n times. The compiler keeps one kernel for the outputs of a step, one for its rows, and
    two for its gradients.
    """
    one, each = divided(1, software=stack), divided(num_ranks, way, software=stack)
    assert num_ranks * attention_flops(both_ways(each)) == attention_flops(both_ways(one))
    size, row = (2 * 2048 * 4096 // num_ranks, 4 * 2048 * 32 // num_ranks)
    blocks = 2 * (num_ranks - 1) * size
    assert sent(each) == (blocks, blocks + num_ranks * 4 * size)
    forward, backward = layer_ops(each)
    moved = Counter[str]()
    for op in (*forward, *backward):
        if isinstance(op.work, Elementwise):
            moved[op.name] += op.work.moved_bytes
    steps, merge, gradients = num_ranks - 1, "output merge", "key and value gradients sum"
    joins = 2 * (1 if stack == "torchtitan_compiled" and way == "all_gather" else steps)
    copies = 4 if stack == "torchtitan" else 0
    assert moved["keys and values joined"] == (joins + copies // 2) * 4 * size
    if stack == "torchtitan":
        assert moved[merge] == num_ranks * 3 * size + 3 * size + steps * (16 * size + 14 * row)
        assert moved[gradients] == (1 + steps / 2) * 10 * size + (1 + 2 * steps) * 8 * size
    else:
        outputs = 5 * steps * size - 2 * size + 2 * row * steps
        assert moved[merge] == outputs + 3 * row * steps
        assert moved[gradients] == (2 + 4) * size + steps * (4 + 1 + 4) * size


def test_bytes_of_a_hierarchy() -> None:
    """Pairs exchange halves of Q, K, V and the output, and in the backward pass also of the saved
    output. Rings of four ranks pass on K and V.
    """
    query, key = 2 * 256 * 4096, 2 * 256 * 1024
    heads, ring = (query + key), 3 * 2 * key
    assert sent(divided(8, "a2a+p2p")) == (heads + ring, heads + query / 2 + 2 * ring)


def test_gradients_are_summed_over_data_and_context_parallel_ranks() -> None:
    """Megatron-LM calls this group data-parallel with context. ZeRO shards states over it."""
    split = {"tensor": 2, "data": 3}
    batch = {"micro": 1, "global": 3}
    for stage in (0, 1, 3):
        scenario = divided(4, parallelism=split, batch=batch, memory={"zero_stage": stage})
        plan = plan_of(scenario)
        assert plan.step_options.data == Group(("cp", "dp"), 12, 4)
        if stage == 3:
            assert plan.options.sharding and plan.options.sharding.groups.data.num_ranks == 12
        held = plan.step_options.held(1200, from_stage=1)
        assert held == (100 if stage else 1200)
    assert plan.mesh.num_ranks == scenario.num_gpus == 24
    assert scenario.num_microbatches == 1


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9)
)
@settings(max_examples=20)
def test_groups_of_a_split_axis(tp: int, inner: int, outer: int, dp: int, per_node: int) -> None:
    """Ranks of an inner group are tp apart, ranks of an outer group tp · inner."""
    mesh = Mesh(tp=tp, cp=inner * outer, dp=dp, gpus_per_node=per_node)
    size = tp * inner * outer
    first = [part + t for part in range(0, size * dp, tp * inner) for t in range(tp)]
    inside = [[start + tp * i for i in range(inner)] for start in first]
    starts = [d + i for d in range(0, size * dp, size) for i in range(tp * inner)]
    across = [[start + tp * inner * i for i in range(outer)] for start in starts]
    for group, groups in zip(mesh.split_group("cp", inner), (inside, across), strict=True):
        nodes = [Counter(rank // per_node for rank in ranks) for ranks in groups]
        widest = max(map(len, nodes))
        assert group.num_ranks == len(groups[0])
        assert group.ranks_per_node == min(max(one.values()) for one in nodes if len(one) == widest)


# ------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_rank_saves_its_shard(way: str, recompute: str) -> None:
    """A rank saves the bytes of a model with shorter sequences. Without recompute, all_gather and
    a2a also save a second copy of the output.
    """
    scenario = divided(4, way, recompute=recompute)
    alone = divided(1, recompute=recompute, model={"seq_length": 512})
    kept, of_part = (
        kept_bytes(record_pass(pass_with(one, chunk_with(one, 1), "F")))
        for one in (scenario, alone)
    )
    output = 2 * 512 * 4096
    copies = output if way in ("all_gather", "a2a") and recompute == "none" else 0
    assert kept - of_part == copies
    forward, backward = (
        pass_memory(pass_with(scenario, chunk_with(scenario, 2), kind)) for kind in ("F", "B")
    )
    assert forward.remaining_bytes == backward.saved_bytes == 2 * kept
    assert backward.remaining_bytes == 0


RING = """
keys and values joined: k v > k v
fused attention: > + o l k v
log-sum-exp copy: l > l - l
fused attention: > + o l
log-sum-exp correction: l l > l - l
output correction: o l l > o + l
output correction: o o l l > (o)
"""
RING_GRADIENTS = """
keys and values copied: k v > (k) (v)
fused attention gradient: > + q k/2 v/2 w - w
query gradient copy: q > (q)
key gradient copy: k/2 > (k/2)
value gradient copy: v/2 > (v/2) - q k/2 v/2
fused attention gradient: > + q k v w q k v o l - w q k v o l
query gradient sum: q q > (q)
key gradient sum: k k > (k)
value gradient sum: v v > (v)
"""
"""Of two ranks: a kernel for the block of the other one, of half the keys, and one for its own.

Forward: own queries, keys and values exist before, and a block is received. Backward: the gradient
of the output, queries, and buffers that send and receive a block with its gradient.
"""
GATHER = """
keys gather: > + K V
values gather: >
keys in order: K > K - K
values in order: V > V - V
"""
HALVES = """
fused attention: > + o o l
output copy: o/2 > (o/2)
fused attention: >
output copy: o/2 > (o/2)
"""
HALVES_GRADIENTS = """
fused attention gradient: > + q/2 k v w/2 - w/2
query gradient copy: q/2 > (q/2)
key gradient sum: k k > (k)
value gradient sum: v v > (v) - q/2 k v
fused attention gradient: > + q/2 3k/2 3v/2 w/2 q k v o l - w/2 q k v o l
query gradient copy: q/2 > (q/2)
key gradient sum: 3k/2 3k/2 > (3k/2)
value gradient sum: 3v/2 3v/2 > (3v/2) - q/2 3k/2 3v/2 K V
key gradients in order: K > K - K
value gradients in order: V > V - V
key gradients scatter: >
value gradients scatter: >
"""
ZEROS = "key and value gradients zero: > K V"
"""The last rank of two: its halves of queries attend to the first 2/4 and 3/4 of the keys K."""
HEADS = """
query packed: q > (q)
key packed: k > (k)
query in order: q > q - q
value packed: v > (v)
key in order: k > k - k
value in order: v > v - v
"""
TOKENS = """
output packed: o > (o)
output in order: o > o - o
"""
"""Ranks exchange tokens for heads, and back: input, packed and received tensors exist."""


def backward_of(table: str) -> str:
    return table.replace(" packed", " gradient packed").replace(" in order", " gradient in order")


@pytest.mark.parametrize(
    ("way", "tables"),
    [
        ("p2p", ((RING, "q k v"), (RING_GRADIENTS, "q o k v k v k v k v"))),
        ("all_gather", ((GATHER + HALVES, "q k v"), (ZEROS + GATHER + HALVES_GRADIENTS, "q o"))),
        ("a2a", ((HEADS, 3 * " q k v"), (backward_of(HEADS), 3 * " q k v"))),
        ("a2a", ((TOKENS, "o o o"), (backward_of(TOKENS), "o o o"))),
    ],
)
def test_bytes_of_every_kernel(way: str, tables: tuple[tuple[str, str], ...]) -> None:
    """Two ranks have 1,024 tokens each, of 32 heads of queries and 8 of keys, of 128 channels."""
    sizes = {"q": 2 * 1024 * 4096, "o": 2 * 1024 * 4096, "l": 4 * 1024 * 32}
    sizes |= dict.fromkeys(("k", "v"), 2 * 1024 * 1024) | dict.fromkeys(("K", "V"), 2 * 2048 * 1024)
    # The backward kernel sums gradients of queries in fp32, and has a number for each row.
    sizes["w"] = 4 * 1024 * 4096 + 4 * 1024 * 32
    sizes |= {f"{name}/2": size // 2 for name, size in sizes.items()}
    sizes |= {"3k/2": 3 * sizes["k/2"], "3v/2": 3 * sizes["v/2"]}
    for ops, (table, before) in zip(layer_ops(divided(2, way)), tables, strict=True):
        kernels = by_hand(table, sizes, before)
        names = {name for name, *_ in kernels}
        assert [row for row in bytes_of(ops) if row[0] in names] == kernels
