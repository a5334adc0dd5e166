"""Recorded torch programs, as a scenario and a plan read them (`scenario.own_program`)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from simtrain.base.input_file import FileVersion
from simtrain.base.mesh import Domains
from simtrain.guests.recording.program import RecordedProgram, read_program
from simtrain.guests.recording.torch_step import TorchStep
from simtrain.scenario.schema import ProgramReader
from simtrain.scenario.software import Kernels

_ATTENTION = frozenset({"simtrain.attention"})
_COMPUTE = {"bf16": "bf16", "f16": "fp16", "f32": "fp32"}


class TorchPrograms(ProgramReader):
    """Reads recordings of `simtrain import --record`."""

    name = "torch"

    def settings(self, file: FileVersion) -> Mapping[str, Any]:
        return _settings(file)

    def step(self, file: FileVersion, domains: Domains, kernels: Kernels) -> TorchStep:
        return _step(file, domains, kernels)


@functools.lru_cache(maxsize=64)
def _step(file: FileVersion, domains: Domains, kernels: Kernels) -> TorchStep:
    return TorchStep(read_program(file), domains, kernels)


@functools.lru_cache(maxsize=16)
def _settings(file: FileVersion) -> Mapping[str, Any]:
    program = read_program(file)
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
    return settings


def _compute_type(program: RecordedProgram) -> str:
    """Return the data type of most elements that the forward passes write."""
    elements: Counter[str] = Counter()
    for run in program.forward:
        for op in run.ops:
            for tensor in op.written:
                if tensor.dtype in _COMPUTE:
                    elements[tensor.dtype] += run.count * tensor.num_stored
    return _COMPUTE[elements.most_common(1)[0][0]] if elements else "bf16"
