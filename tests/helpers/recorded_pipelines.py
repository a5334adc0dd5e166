"""Recorded pipelines written by hand or drawn, and scenarios that run them."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from simtrain.base.pipeline_program import BACKWARDS, FORWARDS, PipelineProgram, write_recording
from simtrain.scenario import Scenario
from tests.helpers.recorded_programs import HIDDEN, SIZE, TOKENS, WEIGHT, W, X, passes, run

WITHOUT_COMMUNICATION = {"intra_node": {"point_to_point": {"latency": "0 s"}}}
IDLE_HOST = {"stack": "torchtitan", "host_issue": "0 s", "host_call": "0 s"}
_FORWARD = {"op": "aten.mm", "module": "layer", "reads": [X, f"{W}'"], "writes": [X]}
_WEIGHT = {
    "op": "aten.mm",
    "module": "layer",
    "reads": [f"bf16[{HIDDEN},{TOKENS}]'", X],
    "writes": [W],
    "makes_bytes": WEIGHT,
}
_INPUT = {
    "op": "aten.mm",
    "module": "layer",
    "reads": [X, W],
    "writes": [X],
    "makes_bytes": SIZE,
    "frees_bytes": 2 * SIZE,
}


def chunk(**changes: Any) -> dict[str, Any]:
    """Return a chunk of one square linear layer, which saves as many bytes as it sends."""
    data = {
        "num_parameters": HIDDEN * HIDDEN,
        "num_trained": HIDDEN * HIDDEN,
        "states": {
            "parameters_bytes": WEIGHT,
            "optimizer_bytes": 2 * WEIGHT,
            "other_bytes": 0,
        },
        "forward": [run(_FORWARD | {"makes_bytes": SIZE})],
        "first_backward": [run(_WEIGHT | {"gradient_bytes": WEIGHT}, _INPUT)],
        "backward": [run(_WEIGHT | {"frees_bytes": WEIGHT}, _INPUT)],
        "optimizer": [
            run(
                {
                    "op": "aten._fused_adamw_",
                    "reads": [f"4 x {W}"],
                    "writes": [f"4 x {W}"],
                    "frees_bytes": WEIGHT,
                }
            )
        ],
    }
    return data | changes


def linear_pipeline(
    stages: int = 4, chunks: int = 1, sent: tuple[str, ...] = (X,), **changes: Any
) -> PipelineProgram:
    """Return a pipeline of one linear layer in each chunk.

    Args:
        stages: number of stages.
        chunks: chunks of each stage.
        sent: tensors that cross each boundary.
        changes: fields of the recording; `chunk` changes each chunk.
    """
    of_chunk, tensors = changes.pop("chunk", {}), [*sent]
    ends = (
        {"sends": tensors},
        {"sends": tensors, "receives": tensors, "returns": tensors},
        {"receives": tensors, "returns": tensors},
    )
    number = stages * chunks
    different = [chunk(**ends[each], **of_chunk) for each in ((0, 1, 2) if number > 2 else (0, 2))]
    middle = len(different) - 2
    data = {
        "version": 1,
        "torch": "2.13.0",
        "command": "simtrain import torch layers.py:stage --pp",
        "gpus": stages,
        "pipeline": stages,
        "sequences": 1,
        "tokens": TOKENS,
        "microbatches": 2 * stages,
        "chunk_numbers": [0, *[middle] * (number - 2), len(different) - 1],
        "chunks": different,
    }
    return PipelineProgram.model_validate(data | changes)


def scenario_of(program: PipelineProgram, folder: Path, **changes: Any) -> Scenario:
    """Return a scenario that runs a recorded pipeline."""
    file = folder / "pipeline.program.json"
    write_recording(program, file)
    data = {"program": str(file), "cluster": "h100_sxm", "software": IDLE_HOST}
    return Scenario.model_validate(data | changes)


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineProgram:
    """Draw pipelines of up to four stages of one to eight ranks, with groups of both kinds."""
    stages, chunks = draw(st.integers(2, 4)), draw(st.sampled_from([1, 1, 2]))
    tensor, data = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    ranks = tensor * data
    groups = [[*range(tensor)], [*range(0, ranks, tensor)], [*range(ranks)]]
    names = *FORWARDS, *BACKWARDS[:-1], "reduction", "optimizer"
    of_chunk: dict[str, Any] = {"groups": groups, "group_streams": draw(st.sampled_from([[], [2]]))}
    for name in names:
        needed = name in ("forward", "backward")
        of_chunk[name] = draw(passes(len(groups))) if needed or draw(st.booleans()) else []
    sent = tuple(f"bf16[{size}]" for size in draw(st.lists(st.integers(1, 10**6), max_size=2)))
    return linear_pipeline(stages, chunks, sent, chunk=of_chunk, gpus=stages * ranks, tensor=tensor)
