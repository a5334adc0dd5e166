"""The settings of a scenario that follow from its recorded program.

A recording has the ops of one rank: its model, batch, layout and data types are those of the
program. So a scenario with a program has these sections from the recording. What decides which ops
a framework issues is refused; software stack, cluster and hardware can be changed. The stages of a
pipeline are recorded without an order, so schedule and number of microbatches can be changed too.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from simtrain.base.input_file import FileVersion
from simtrain.base.pipeline_program import PipelineProgram, read_recording
from simtrain.base.program import Program, ProgramRun
from simtrain.schedules.registry import default_name

PROGRAM_FIELDS: Final = (
    *("name", "description", "program", "software", "cluster", "hardware", "variation"),
)
"""Fields that a scenario with a program may set."""
_OF_PIPELINES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"schedule": (), "batch": ("global_",), "overlap": ("pipeline",)}
)
"""Fields that a scenario with a recorded pipeline may set too: all of a section, or these of it."""
_ATTENTION = frozenset({"simtrain.attention"})
_COMPUTE = {"bf16": "bf16", "f16": "fp16", "f32": "fp32"}


def settings_of(file: str) -> dict[str, Any]:
    """Return the sections that follow from the recording in a file, as in scenario files.

    Raises:
        InputError: the file is no recording (`read_program`).
    """
    return dict(_settings(FileVersion.of(file)))


@functools.lru_cache(maxsize=16)
def _settings(file: FileVersion) -> Mapping[str, Any]:
    program = read_recording(file)
    settings: dict[str, Any] = {
        # The ops have all sizes. Of a model, only the number of tokens is read; the other fields
        # are the smallest legal ones.
        "model": {
            "num_layers": 1,
            "hidden_size": 128 * program.tensor,
            "num_attention_heads": program.tensor,
            "seq_length": program.tokens,
            "vocab_size": 128 * program.tensor,
            "hidden_dropout": 0,
            "attention_dropout": 0,
        },
        "batch": {
            "micro": program.sequences,
            "global": program.microbatches * program.sequences * program.data,
        },
        "parallelism": {"tensor": program.tensor, "data": program.data},
        "schedule": "1f1b",
        "precision": {
            "compute": _compute_type(program),
            "tf32": program.f32_products == "tf32",
        },
    }
    if settings["precision"]["compute"] != "fp32":
        settings["precision"].pop("tf32")
    ops = {op.op for runs in program.passes.values() for run in runs for op in run.ops}
    # Fused kernels have 16-bit numbers. Attention in fp32 runs as products.
    if ops & _ATTENTION and settings["precision"]["compute"] != "fp32":
        settings["attention_backend"] = "fused"
    elif settings["precision"]["compute"] == "fp32":
        settings["attention_backend"] = "unfused"
    return settings | _of_pipeline(program, settings)


def _of_pipeline(program: Program | PipelineProgram, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections that a pipeline changes."""
    if isinstance(program, Program):
        return {}
    split = {"pipeline": program.pipeline, "interleave": program.interleave}
    return {
        # Of layers, each chunk has one.
        "model": settings["model"] | {"num_layers": len(program.chunk_numbers)},
        "parallelism": settings["parallelism"] | split | {"scatter_gather": False},
        "schedule": default_name(program.interleave),
    }


def settings_of_pipeline(recorded: Program | PipelineProgram) -> dict[str, Any]:
    """Return the settings of a recorded pipeline that its scenario names; none without one."""
    if isinstance(recorded, Program):
        return {}
    sequences = recorded.microbatches * recorded.sequences * recorded.data
    settings: dict[str, Any] = {
        "parallelism": {"pipeline": recorded.pipeline},
        "batch": {"global": sequences},
        "schedule": default_name(recorded.interleave),
    }
    if recorded.interleave > 1:
        settings["parallelism"]["interleave"] = recorded.interleave
        # torch runs several chunks in _PipelineScheduleRuntime, which does not block.
        settings["overlap"] = {"pipeline": True}
    return settings


def fields_beside(file: str) -> dict[str, tuple[str, ...]]:
    """Return the fields that a scenario with a recording may set, as in `_OF_PIPELINES`."""
    is_pipeline = isinstance(read_recording(FileVersion.of(file)), PipelineProgram)
    return dict.fromkeys(PROGRAM_FIELDS, ()) | (dict(_OF_PIPELINES) if is_pipeline else {})


def refusal_words(name: str, file: str) -> tuple[str, str]:
    """Say why a section cannot be set beside a recording, and what to do instead."""
    names = ["software", "cluster", "hardware", "variation"]
    again = "record the program again with other arguments"
    if "schedule" in fields_beside(file):
        names += ["schedule", "batch.global", "overlap.pipeline"]
        if name == "parallelism":
            again = "record the program again with other --gpus, --pp or --chunks"
    words = f"{', '.join(names[:-1])} and {names[-1]}"
    message = f"a recorded program has its own: only {words} can be set beside it"
    return message, f"remove {name}, or {again}"


def _compute_type(program: Program | PipelineProgram) -> str:
    """Return the data type of most elements that the forward passes write."""
    elements: Counter[str] = Counter()
    runs: list[ProgramRun] = program.forward if isinstance(program, Program) else program.forwards
    for run in runs:
        for op in run.ops:
            for tensor in op.written:
                if tensor.dtype in _COMPUTE:
                    elements[tensor.dtype] += run.count * tensor.num_stored
    return _COMPUTE[elements.most_common(1)[0][0]] if elements else "bf16"
