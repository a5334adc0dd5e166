"""Recorded programs written by hand or drawn, and scenarios that run them."""

import random
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
from tests.helpers.random_recordings import random_recording

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
        "command": "simtrain import --record layers.py:main",
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


programs = st.integers(0, 10**6).map(lambda seed: random_recording(random.Random(seed)))
"""Recordings of one to many ranks."""


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
