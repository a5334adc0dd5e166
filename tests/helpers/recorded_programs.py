"""Recorded programs written by hand or drawn, and scenarios that run them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from simtrain.iteration.report.result import Result
from simtrain.recording.holders import UNNAMED, holders_at
from simtrain.recording.program import Program, expanded, write_program
from simtrain.scenario import Scenario
from simtrain.workload.record import record_pass
from simtrain.workload.work import FusedAttention, Work

TOKENS, HIDDEN, LAYERS = 256, 128, 4
X, W = f"bf16[{TOKENS},{HIDDEN}]", f"bf16[{HIDDEN},{HIDDEN}]"
SIZE = 2 * TOKENS * HIDDEN
WEIGHT = 2 * HIDDEN * HIDDEN


def run(*ops: dict[str, Any], count: int = 1) -> dict[str, Any]:
    return {"count": count, "ops": [*ops]}


def linear_layers(**changes: Any) -> Program:
    """Return a program of four square linear layers without biases, as torch would issue it.

    Each forward product saves its input, which the weight gradient reads.
    """
    forward = {"op": "aten.mm", "module": "layers.*", "reads": [X, f"{W}'"], "writes": [X]}
    gradients = (
        {
            "op": "aten.mm",
            "module": "layers.*",
            "reads": [f"bf16[{HIDDEN},{TOKENS}]'", X],
            "writes": [W],
            "makes_bytes": WEIGHT,
            "gradient_bytes": WEIGHT,
        },
        {
            "op": "aten.mm",
            "module": "layers.*",
            "reads": [X, W],
            "writes": [X],
            "makes_bytes": SIZE,
            "frees_bytes": 2 * SIZE,
        },
    )
    adam = {
        "op": "aten._fused_adamw_",
        "reads": [f"{4 * LAYERS} x {W}"],
        "writes": [f"{4 * LAYERS} x {W}"],
        "frees_bytes": LAYERS * WEIGHT,
    }
    data = {
        "version": 1,
        "torch": "2.13.0",
        "command": "simtrain import torch layers.py:main",
        "gpus": 1,
        "sequences": 1,
        "tokens": TOKENS,
        "num_parameters": LAYERS * HIDDEN * HIDDEN,
        "num_trained": LAYERS * HIDDEN * HIDDEN,
        "states": {
            "parameters_bytes": LAYERS * WEIGHT,
            "optimizer_bytes": 2 * LAYERS * WEIGHT,
            "other_bytes": SIZE,
        },
        "forward": [run(forward | {"makes_bytes": SIZE}, count=LAYERS)],
        "backward": [
            run({"op": "aten.ones_like", "reads": [X], "writes": [X], "makes_bytes": SIZE}),
            run(*gradients, count=LAYERS),
            run({"op": "aten.sum", "reads": [X], "writes": ["bf16[]"], "frees_bytes": SIZE}),
        ],
        "optimizer": [run(adam)],
    }
    return Program.model_validate(data | changes)


def named_layers() -> Program:
    """Return `linear_layers` with the names of what is kept and freed, as torch records it."""
    product = {"op": "aten.mm", "module": "layers.*", "reads": [X, W], "writes": [X]}
    forward = product | {
        "makes_bytes": 2 * SIZE,
        "frees_bytes": SIZE,  # a copy of its own
        "keeps_until": {"backward layers.*: aten.mm": SIZE},
    }
    weight = product | {
        "op": "aten.t_mm",
        "makes_bytes": WEIGHT,
        "gradient_bytes": WEIGHT,
        "keeps_until": {"optimizer aten._fused_adamw_": WEIGHT},
    }
    inputs = product | {
        "makes_bytes": SIZE,
        "frees_bytes": 2 * SIZE,
        "frees_of": {"forward layers.*: aten.mm": SIZE, "backward head: aten.ones": SIZE},
    }
    ones = {"op": "aten.ones", "module": "head", "makes_bytes": LAYERS * SIZE}
    step = {
        "op": "aten._fused_adamw_",
        "frees_bytes": LAYERS * WEIGHT,
        "frees_of": {"gradients layers.*: aten.t_mm": LAYERS * WEIGHT},
    }
    return linear_layers(
        forward=[run(forward, count=LAYERS)],
        backward=[run(ones), run(weight, inputs, count=LAYERS)],
        optimizer=[run(step)],
    )


def scenario_of(program: Program, folder: Path, **changes: Any) -> Scenario:
    """Write a program to a folder and return a scenario that runs it."""
    file = folder / f"{len([*folder.iterdir()])}.program.json"
    write_program(program, file)
    data = {"program": str(file), "cluster": "h100_sxm", "software": {"stack": "torchtitan"}}
    return Scenario.model_validate(data | changes)


_SIZES = st.sampled_from([1, 16, 128, 1000])
_TYPES = st.sampled_from(["bf16", "f32"])
_COLLECTIVES = (
    "c10d._allgather_base_",
    "c10d._reduce_scatter_base_",
    "_c10d_functional.all_reduce",
    "_c10d_functional.all_to_all_single",
)


@st.composite
def ops(draw: st.DrawFn, place: int, num_groups: int) -> dict[str, Any]:
    """Draw an op of a pass that may wait for `place` earlier ones."""
    m, n, k, dtype = draw(_SIZES), draw(_SIZES), draw(_SIZES), draw(_TYPES)
    kind = draw(st.sampled_from(["mm", "mm", "add", "unknown", "empty", "collective"]))
    op: dict[str, Any] = {"module": draw(st.sampled_from(["", "layers.*", "head"]))}
    if kind == "collective" and num_groups:
        op |= {"op": draw(st.sampled_from(_COLLECTIVES)), "stream": draw(st.integers(0, 3))}
        op |= {"group": draw(st.integers(0, num_groups - 1))}
        op |= {"reads": [f"{dtype}[{m}]"], "writes": [f"{dtype}[{m},{n}]"]}
    elif kind == "mm":
        op |= {"op": "aten.mm", "reads": [f"{dtype}[{m},{k}]", f"{dtype}[{k},{n}]"]}
        op |= {"writes": [f"{dtype}[{m},{n}]"]}
    else:
        op |= {"op": f"aten.{kind}" if kind in ("add", "empty") else "other.op"}
        op |= {"reads": [f"{dtype}[{m}]"], "writes": [f"{dtype}[{m}]"]}
        op |= {"stream": draw(st.integers(0, 2))}
    if place and draw(st.booleans()):
        op["waits"] = [draw(st.integers(1, min(place, 6)))]
    made = draw(st.integers(0, 10**6))
    freed = draw(st.integers(0, made))
    return op | {"makes_bytes": made, "frees_bytes": freed, "gradient_bytes": made // 3}


@st.composite
def passes(draw: st.DrawFn, num_groups: int) -> list[dict[str, Any]]:
    """Draw the runs of a pass, some of them repeated, with a product in each pass."""
    runs, place = [run({"op": "aten.mm", "reads": [X, W], "writes": [X]})], 1
    for _ in range(draw(st.integers(0, 3))):
        count, length = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        part = [draw(ops(place + number, num_groups)) for number in range(length)]
        runs.append(run(*part, count=count))
        place += count * length
    return runs


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw recordings of one to 32 ranks."""
    tensor, data = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 2, 4]))
    gpus = tensor * data
    groups = [[*range(tensor)], [*range(0, gpus, tensor)], [*range(gpus)]]
    changes = {name: draw(passes(len(groups))) for name in ("forward", "backward", "optimizer")}
    return linear_layers(
        gpus=gpus,
        tensor=tensor,
        groups=groups,
        microbatches=draw(st.integers(1, 3)),
        group_streams=draw(st.sampled_from([[], [2], [1, 3]])),
        **changes,
    )


def _without_model(work: Work) -> Work:
    return replace(work, is_of_causal_model=True) if isinstance(work, FusedAttention) else work


def works(result: Result, *kinds: type) -> Counter[Any]:
    """Count the works of some kinds in all passes, without what model FLOPs count of attention."""
    return Counter(
        (pass_.kind, _without_model(op.work))
        for pass_, times in result.plan.different_passes()
        for op in record_pass(pass_).ops
        for _ in range(times)
        if isinstance(op.work, kinds)
    )


def assert_all_bytes_have_a_name(program: Program) -> None:
    """Check at every op that the holders have the bytes that were made and not freed."""
    states = program.states
    expected = states.parameters_bytes + states.optimizer_bytes + states.other_bytes
    for phase, runs in program.passes.items():
        for place, op in enumerate(expanded(runs)):
            expected += op.makes_bytes
            holders = holders_at(program, phase, place)
            assert sum(each.num_bytes for each in holders) == expected
            assert UNNAMED not in {each.kind for each in holders}
            expected -= op.frees_bytes
