"""Recorded programs written by hand or drawn, and scenarios that run them."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from simtrain.guests.recording.program import RecordedProgram, write_program
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.workload.passes import record_pass
from simtrain.workload.work import FusedAttention, Work
from tests.helpers.random_recordings import random_recording

TOKENS, HIDDEN, LAYERS = 256, 128, 4
X, W = f"bf16[{TOKENS},{HIDDEN}]", f"bf16[{HIDDEN},{HIDDEN}]"
SIZE = 2 * TOKENS * HIDDEN
WEIGHT = 2 * HIDDEN * HIDDEN


def run(*ops: dict[str, Any], count: int = 1) -> dict[str, Any]:
    return {"count": count, "ops": [*ops]}


def linear_layers(**changes: Any) -> RecordedProgram:
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
    return RecordedProgram.model_validate(data | changes)


def scenario_of(program: RecordedProgram, folder: Path, **changes: Any) -> Scenario:
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
