"""fp8 weights that each pass gathers, and torchao's casts, counted by hand."""

from typing import Any

from simtrain.iteration.memory.buffers import FP8_WEIGHTS
from simtrain.scenario import Scenario
from simtrain.schedules import Action
from simtrain.studies.simulation import simulate_memory
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.work import Collective, Elementwise
from tests.helpers.toys import layer_ops, ops_of, pass_of, plan_of, saved_bytes
from tests.workload.test_precision import FFN, LAYER, QKV, TOKENS, VOCAB, WEIGHTS, H, modern
from tests.workload.test_precision import fp8 as recipe_of

RANKS, CONTEXT = 4, 512
ROOT_UNIT = 2 * VOCAB * H + H
"""Embedding, output layer and final norm."""
LINEAR = {
    "QKV": (H, QKV),
    "projection": (CONTEXT, H),
    "gate and up": (H, 2 * FFN),
    "down": (FFN, H),
}
"""Inputs and outputs."""
SEPARATE = {
    "query": (H, CONTEXT),
    "key": (H, (QKV - CONTEXT) // 2),
    "value": (H, (QKV - CONTEXT) // 2),
    "projection": (CONTEXT, H),
    "gate": (H, FFN),
    "up": (H, FFN),
    "down": (FFN, H),
}
"""Those of torchtitan, which has a product for each projection."""
SHARING_A_CAST = "key", "value", "up"
"""Layers whose input a layer before them has cast."""


def sharded(precision: dict[str, Any], stack: str = "megatron_core", **more: Any) -> Scenario:
    sections = {"memory": {"zero_stage": 3}, "software": stack} | more
    grid = {"parallelism": {"data": RANKS}, "batch": {"micro": 1, "global": 2 * RANKS}}
    return modern(precision, tensor=1, **grid, **sections)


def torchao(*, gathers: bool = False, **more: Any) -> Scenario:
    precision = recipe_of("tensorwise", fp8_parameters=gathers)
    return sharded(precision, "torchtitan_compiled", overlap={"data_parallel": True}, **more)


def passes(scenario: Scenario) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    plan = plan_of(scenario)
    there, back = (ops_of(pass_of(plan, Action(0, kind, 0))) for kind in ("F", "B"))  # type: ignore[arg-type]
    return there, back


def gathered(ops: tuple[Op, ...]) -> list[int]:
    """Return the bytes of each parameter all-gather."""
    works = [op.work for op in ops if op.name == "parameter gather"]
    return [work.array_bytes for work in works if isinstance(work, Collective)]


def moved(ops: tuple[Op, ...], *parts: str) -> dict[str, tuple[int, int]]:
    """Return the bytes that kernels read and write; their names contain `name`."""
    return {
        op.name: (op.work.read_bytes, op.work.write_bytes)
        for op in ops
        if isinstance(op.work, Elementwise) and any(part in op.name for part in parts)
    }


# -------------------------------------------------------------------------------- Megatron-LM


def test_zero_3_gathers_bf16_and_caches_both_copies_of_an_iteration() -> None:
    """Transformer Engine keeps both copies in workspaces, which are not sharded."""
    scenario, plain = (sharded(one) for one in (recipe_of(), {}))
    for ours, bf16 in zip(passes(scenario), passes(plain), strict=True):
        assert gathered(ours) == gathered(bf16)
        assert sorted(gathered(ours)) == [2 * LAYER, 2 * LAYER, 2 * ROOT_UNIT]
        assert not moved(ours, "weight to fp8", "weight transpose", "weight largest")
    stage = simulate_memory(scenario).stages[0]
    assert stage.buffers_bytes[FP8_WEIGHTS] == 2 * 2 * WEIGHTS
    (step,) = plan_of(scenario).steps
    assert moved(step["weight_cast"], "") == {"weights to fp8": (2 * 2 * WEIGHTS, 2 * 2 * WEIGHTS)}


def test_zero_3_gathers_weights_that_are_kept_in_fp8() -> None:
    """Each weight is one byte. Each backward pass transposes it; no other copy is kept."""
    scenario = sharded(recipe_of(fp8_parameters=True))
    there, back = passes(scenario)
    layer = WEIGHTS + 2 * 2 * H
    assert sorted(gathered(there)) == sorted(gathered(back)) == [layer, layer, 2 * ROOT_UNIT]
    transposes = {f"{name} weight transpose": n * k for name, (n, k) in LINEAR.items()}
    assert moved(back, "weight transpose") == {name: (n, n) for name, n in transposes.items()}
    assert not moved(there, "weight transpose")
    stage = simulate_memory(scenario).stages[0]
    rest = 2 * VOCAB * H + 5 * H
    assert stage.states.parameters_bytes == (2 * rest + 2 * WEIGHTS) / RANKS
    assert FP8_WEIGHTS not in stage.buffers_bytes
    (step,) = plan_of(scenario).steps
    shard = 2 * WEIGHTS // RANKS
    assert moved(step["update"], "fp8") == {"weights to fp8": (2 * shard, shard)}
    assert "weight_cast" not in step


def test_blocks_are_gathered_with_their_scales() -> None:
    there, _ = passes(sharded(recipe_of("blockwise", fp8_parameters=True)))
    assert min(gathered(there)) == WEIGHTS + WEIGHTS // 128**2 * 4 + 2 * 2 * H


# ------------------------------------------------------------------------------------ torchao


def test_torchao_saves_inputs_in_bf16_and_casts_them_twice() -> None:
    """The forward product needs a cast by rows, the weight gradient one by columns."""
    scenario = torchao()
    (there, back), bf16 = layer_ops(scenario), layer_ops(torchao().replace({"precision": {}}))
    assert saved_bytes(there) == saved_bytes(bf16[0])
    assert total_flops(there) == total_flops(bf16[0])
    for name, (inputs, outputs) in SEPARATE.items():
        given, made = TOKENS * inputs, TOKENS * outputs
        again = {f"{name} input to fp8 again": (2 * given, given)}
        assert moved(back, f"{name} input to") == ({} if name in SHARING_A_CAST else again)
        gradient = moved(back, f"{name} gradient")
        assert gradient[f"{name} gradient to fp8"] == (2 * made, 2 * made)
        assert gradient[f"{name} gradient largest"] == (2 * made, 0)
    casts = moved(there, "input to fp8", "output to fp8")
    assert [*casts.values()].count((2 * TOKENS * H, TOKENS * H)) == 3
    assert casts["down input to fp8"] == (2 * TOKENS * FFN, TOKENS * FFN)
    assert not moved(there + back, "transpose")


def test_torchao_casts_weights_for_each_use() -> None:
    """Forward and backward casts read two bytes and write one. The absolute maximum
    is found once.
    """
    there, back = layer_ops(torchao())
    for name, (inputs, outputs) in SEPARATE.items():
        number = inputs * outputs
        cast = {f"{name} weight to fp8": (2 * number, number)}
        largest = {f"{name} weight largest": (2 * number, 0)}
        assert moved(there, f"{name} weight to", f"{name} weight largest") == cast | largest
        assert moved(back, f"{name} weight to", f"{name} weight largest") == cast
    stage = simulate_memory(torchao()).stages[0]
    assert FP8_WEIGHTS not in stage.buffers_bytes
    assert "weight_cast" not in plan_of(torchao()).steps[0]


def test_torchao_gathers_fp8_that_each_rank_casts() -> None:
    """Each rank casts its fp32 shard to one byte and copies it. Backward passes
    transpose weights.
    """
    scenario = torchao(gathers=True)
    there, back = passes(scenario)
    layer = WEIGHTS + 2 * 2 * H
    assert sorted(gathered(there)) == sorted(gathered(back)) == [layer, layer, 2 * ROOT_UNIT]
    works = [op.work for op in there if op.name == "parameter copy in"]
    sizes = sorted(
        (one.read_bytes, one.write_bytes) for one in works if isinstance(one, Elementwise)
    )
    part = layer // RANKS
    assert sizes[0] == sizes[1] == (4 * LAYER // RANKS + part, 2 * part)
    assert moved(there, "parameter copy out")["parameter copy out"] in (
        (layer, layer),
        (2 * ROOT_UNIT, 2 * ROOT_UNIT),
    )
    assert not moved(there + back, "weight to fp8", "weight largest")
    assert len(moved(back, "weight transpose")) == len(SEPARATE)
    states = simulate_memory(scenario).stages[0].states
    assert states == simulate_memory(torchao()).stages[0].states
    (step,) = plan_of(scenario).steps
    (reduce,) = (op.work for op in step["update"] if isinstance(op.work, Collective))
    assert reduce.array_bytes == 4
    found = moved(step["update"], "weights largest")
    assert found == {"weights largest": (4 * 2 * WEIGHTS // RANKS, 0)}


# ------------------------------------------------------------------- torchao, tensor parallelism

T, OWN = 2, TOKENS // 2 * H
SPLIT = {"parallelism": {"data": RANKS, "tensor": T, "sequence_parallel": True}}
COLUMN, ROW = ("query", "key", "value", "gate", "up"), ("projection", "down")


def collectives(ops: tuple[Op, ...]) -> list[tuple[str, str, int]]:
    """Return name, kind and bytes of the array of each collective, in order."""
    works = ((op.name, op.work) for op in ops)
    return [
        (name, one.kind.value, one.array_bytes)
        for name, one in works
        if isinstance(one, Collective)
    ]


def test_torchao_gathers_inputs_once_in_fp8_and_reduces_in_bf16() -> None:
    """Norms find the largest number, on which ranks agree; they gather a cast of their rows. Every
    other tensor is cast after an all-reduce of its largest number, also one that is not gathered.
    """
    there, back = layer_ops(torchao().replace(SPLIT))

    def agreed(name: str) -> tuple[str, str, int]:
        return f"{name} largest", "all_reduce", 4

    weights = [[agreed(f"{name} weight")] for name in SEPARATE]
    query, key, value, projection, gate, up, down = weights
    whole = TOKENS * H
    assert collectives(there) == [
        *(agreed("attention RMS norm output"), ("attention g", "all_gather", whole)),
        *(*query, *key, *value),
        *(agreed("projection input"), *projection, ("attention ḡ", "reduce_scatter", 2 * whole)),
        *(agreed("MLP RMS norm output"), ("MLP g", "all_gather", whole)),
        *(*gate, *up),
        *(agreed("down input"), *down, ("MLP ḡ", "reduce_scatter", 2 * whole)),
    ]
    gathers = [one for one in collectives(back) if one[1] == "all_gather"]
    assert gathers == [("MLP ḡ", "all_gather", whole), ("attention ḡ", "all_gather", whole)]
    scatters = [one for one in collectives(back) if one[1] == "reduce_scatter"]
    assert scatters == [
        *(("MLP g gradient", "reduce_scatter", 2 * whole),),
        *(("attention g gradient", "reduce_scatter", 2 * whole),),
    ]
    agreements = {one for one in collectives(back) if one[1] == "all_reduce"}
    assert agreements == {agreed(f"{name} gradient") for name in SEPARATE}
    assert len(collectives(back)) == 2 + 2 + len(SEPARATE)


def test_torchao_saves_gathered_inputs_in_fp8_and_transposes_them() -> None:
    """A cast writes rows. Layers of one input transpose it once, gathered gradients too."""
    scenario = torchao().replace(SPLIT)
    there, back = layer_ops(scenario)
    assert moved(there, "attention RMS norm output to fp8") == {
        "attention RMS norm output to fp8": (2 * OWN, OWN)
    }
    for name, width in (("projection", CONTEXT), ("down", FFN)):
        part = TOKENS * width // T
        assert moved(there, f"{name} input to") == {f"{name} input to fp8": (2 * part, part)}
        assert moved(back, f"{name} gradient to") == {f"{name} gradient to fp8": (2 * OWN, OWN)}
    whole = TOKENS * H
    assert moved(back, "transpose") == {
        **{f"{name} input transpose": (whole, whole) for name in ("query", "gate")},
        "projection input transpose": (TOKENS * CONTEXT // T,) * 2,
        "down input transpose": (TOKENS * FFN // T,) * 2,
        **{f"{name} gradient transpose": (whole, whole) for name in ROW},
    }
    for name in COLUMN:
        part = TOKENS * SEPARATE[name][1] // T
        cast = {f"{name} gradient to fp8": (2 * part, 2 * part)}
        assert moved(back, f"{name} gradient to") == cast
    saved = saved_bytes(there)
    bf16 = saved_bytes(layer_ops(torchao().replace({"precision": {}} | SPLIT))[0])
    inputs = 2 * whole + TOKENS * (CONTEXT + FFN) // T
    # In bf16 the projection saves attention's output, which attention saves too.
    assert saved == bf16 - 2 * (inputs - TOKENS * CONTEXT // T) + inputs
