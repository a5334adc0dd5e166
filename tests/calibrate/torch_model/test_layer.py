"""The paper's layer in torch on one and two ranks: its results, saved bytes and collectives."""

import dataclasses
import json
import pathlib
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.torch_model.layer import Recompute
from calibrate.torch_model.parallel import TensorGroup
from calibrate.torch_model.shape import LayerShape
from simtrain.base.mesh import Group
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.workload import gpt
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.ops import Op
from simtrain.workload.passes import Pass, PassKind, PassOptions, record_pass
from simtrain.workload.tape import Microbatch
from simtrain.workload.work import Collective
from tests.helpers.rank_processes import run_ranks
from tests.helpers.torch_ranks import bytes_kept, errors, run_rank
from tests.helpers.toys import layer_scenarios, shape_of

pytestmark = pytest.mark.slow

MEAN, DEVIATION = "layer norm mean", "layer norm reciprocal deviation"
BEFORE_CORE = ("block input", MEAN, DEVIATION, "attention layer norm output")
CORE = (
    "query and key",
    "query and key",
    "softmax output",
    "softmax dropout mask",
    "value",
    "softmax dropout output",
)
CORE_RECOMPUTED = ("query and key", "query and key", "value")
CORE_FUSED = (*CORE_RECOMPUTED, "softmax log-sum-exp")
AFTER_CORE = (
    "attention output",
    "attention dropout mask",
    "attention output with residual",
    MEAN,
    DEVIATION,
    "MLP layer norm output",
    "GeLU input",
    "GeLU output",
    "MLP dropout mask",
)
KEPT = {
    Recompute.NONE: BEFORE_CORE + CORE + AFTER_CORE,
    Recompute.SELECTIVE: BEFORE_CORE + CORE_RECOMPUTED + AFTER_CORE,
    Recompute.FULL: ("block input",),
}
KEPT_FUSED = KEPT | {Recompute.NONE: BEFORE_CORE + CORE_FUSED + AFTER_CORE}
"""Name in the op list of each tensor that torch saves, in the order of saving.

The paper ignores two of them: a layer norm's mean and reciprocal deviation, one number per token.
"""


def shape(
    tensor: int, *, sequence: bool = False, heads: int = 4, batch: int = 2, fused: bool = False
) -> LayerShape:
    return LayerShape(
        seq_length=16,
        microbatch=batch,
        hidden=32 * heads,
        heads=heads,
        ffn=128 * heads,
        vocab=64,
        tensor=tensor,
        sequence_parallel=sequence,
        fused_attention=fused,
    )


TWO_RANKS = [
    shape(2),
    shape(2, sequence=True),
    shape(2, heads=6, batch=1),
    shape(2, sequence=True, heads=6, batch=3),
    shape(2, heads=6, batch=3, fused=True),
    shape(2, sequence=True, fused=True),
]


def ops_of(layer_shape: LayerShape, recompute: Recompute, kind: PassKind) -> list[Op]:
    """Return the ops of a pass of one layer."""
    sizes, t = layer_shape, layer_shape.tensor
    layer = gpt.TransformerLayer(sizes.hidden, sizes.heads, sizes.ffn, sizes.fused_attention)
    microbatch = Microbatch(
        seq_length=sizes.seq_length,
        sequences=sizes.microbatch,
        hidden=sizes.hidden,
        tensor=Group(("tp",), t, ranks_per_node=t),
        sequence_parallel=sizes.sequence_parallel,
        element_bytes=2,
        gradient_bytes=4,
    )
    options = PassOptions(microbatch, OverlapPolicy())
    policy = RecomputePolicy(strategy=recompute.value)
    return list(record_pass(Pass(Chunk(((layer, 1),)), kind, policy, options)).ops)


def kept_by_ops(layer_shape: LayerShape, recompute: Recompute) -> dict[str, int]:
    """Return the bytes of each tensor that the ops save."""
    forward = ops_of(layer_shape, recompute, "F")
    return {tensor.name: tensor.num_bytes for op in forward for tensor in op.saves}


def sent_by_ops(layer_shape: LayerShape, recompute: Recompute) -> dict[str, list[Any]]:
    """Return the kind and the bytes of each collective of the ops, in order."""
    kinds: dict[str, PassKind] = {"forward": "F", "backward": "B"}
    return {
        name: [
            [op.work.kind, op.work.array_bytes]
            for op in ops_of(layer_shape, recompute, kind)
            if isinstance(op.work, Collective)
        ]
        for name, kind in kinds.items()
    }


def assert_keeps_what_the_ops_say(
    layer_shape: LayerShape, recompute: Recompute, found: dict[str, Any]
) -> None:
    names = (KEPT_FUSED if layer_shape.fused_attention else KEPT)[recompute]
    by_name = dict.fromkeys(names, 0)
    for name, num_bytes in zip(names, found["tensors"], strict=True):
        by_name[name] += num_bytes
    statistics = by_name.pop(MEAN, 0) + by_name.pop(DEVIATION, 0)
    expected = kept_by_ops(layer_shape, recompute)
    assert by_name == expected
    # Two norms keep two bfloat16 numbers per token on a CPU; on a GPU they are float32.
    assert statistics == (0 if recompute is Recompute.FULL else 8 * layer_shape.local_tokens)
    # No small view keeps a larger storage alive.
    assert found["storages"] == sum(expected.values()) + statistics


@pytest.mark.ci
def test_two_ranks_equal_the_plain_layer(tmp_path: pathlib.Path) -> None:
    assert_ranks_equal_the_plain_layer(tmp_path, TWO_RANKS)


def assert_ranks_equal_the_plain_layer(folder: pathlib.Path, shapes: list[LayerShape]) -> None:
    """Start the ranks once for all cases; compare what they compute, save and send."""
    num_ranks = shapes[0].tensor
    run_ranks(run_rank, (str(folder), shapes), num_ranks)
    for rank in range(num_ranks):
        found = json.loads(pathlib.Path(folder, f"{rank}.json").read_text(encoding="utf-8"))
        for (layer_shape, recompute), case in zip(product(shapes, Recompute), found, strict=True):
            print(f"rank {rank}, {recompute}: {layer_shape}")
            assert_equals_the_plain_layer(layer_shape, case["errors"])
            assert_keeps_what_the_ops_say(layer_shape, recompute, case["kept"])
            assert case["sent"] == sent_by_ops(layer_shape, recompute)


def assert_equals_the_plain_layer(layer_shape: LayerShape, found: dict[str, float]) -> None:
    """Compare the output, the input gradient and twelve weight gradients, in float64 with dropout.

    The exponential of torch's fused kernel has only eight correct digits.
    """
    limit = 1e-7 if layer_shape.fused_attention else 1e-12
    assert len(found) == 2 + 12
    assert {name: error for name, error in found.items() if not error < limit} == {}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("recompute", Recompute)
def test_one_rank_equals_the_plain_layer(recompute: Recompute, fused: bool) -> None:
    undivided = shape(1, batch=3, fused=fused)
    found = errors(undivided, recompute, TensorGroup(), rank=0)
    assert_equals_the_plain_layer(undivided, found)


@settings(max_examples=30)
@given(layer_scenarios(max_tensor=1), st.booleans())
def test_one_rank_saves_the_bytes_of_the_recorded_ops(scenario: Scenario, fused: bool) -> None:
    recompute = Recompute(scenario.recompute.strategy)
    layer_shape = dataclasses.replace(shape_of(scenario), fused_attention=fused)
    found = bytes_kept(layer_shape, recompute, TensorGroup())
    assert_keeps_what_the_ops_say(layer_shape, recompute, found)
