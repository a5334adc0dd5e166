"""A recorded pipeline: the passes of each virtual stage on one rank, and its file.

`simtrain import torch --pp` records each stage alone, and equal stages once. No order of passes is
recorded: a scenario names a schedule. Passes of the same kind differ by what ran before them on
their chunk: with fully_shard, the first one gathers parameters, and the first backward pass makes
the gradients that later ones add to.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from simtrain.base.entry import Count, CountOrZero, Strict, Text
from simtrain.base.input_file import FileVersion
from simtrain.base.program import (
    Program,
    ProgramRun,
    ProgramStates,
    parse_tensor,
    parsed_file,
    program_text,
    runs_text,
    write_packed,
)

FORWARDS: Final = ("forward", "first_forward", "forward_after_backward")
"""Forward passes by turn: after another one of its chunk, the first, after a backward pass."""
BACKWARDS: Final = ("backward", "first_backward", "backward_after_backward", "last_backward")
"""Backward passes by turn: after a forward pass of its chunk, the first, after another one, and the
last one if it reduces gradients.
"""
OTHERS: Final = ("reduction", "optimizer")
_PASSES = (*FORWARDS, *BACKWARDS, *OTHERS)
_MOST_STAGES = 1024
_COMMON = "version", "torch", "f32_products", "command", "tensor", "sequences", "tokens"

_Runs = Annotated[list[ProgramRun], Field(default_factory=list)]
_Tensors = Annotated[list[str], Field(default_factory=list)]
_Texts = Annotated[list[Text], Field(default_factory=list)]


class ProgramChunk(Strict):
    """The passes of a virtual stage on one rank.

    Args:
        num_parameters, num_trained: parameters of all its ranks, and those with gradients.
        states: what the rank holds for it before the iteration.
        receives: tensors of a microbatch that it receives from the stage before.
        sends: those that it sends to the next stage.
        returns: those of `receives` whose gradients it sends back.
        groups: ranks of each group with a collective, relative to the first rank of the stage.
        group_streams: as in `Program`.
        forward, first_forward, forward_after_backward: passes by turn (`FORWARDS`). One that is
            missing is equal to `forward`.
        backward, first_backward, backward_after_backward, last_backward: likewise (`BACKWARDS`).
        reduction: what reduces gradients after the last backward pass.
        optimizer: its optimizer step.
    """

    num_parameters: CountOrZero
    num_trained: CountOrZero
    states: ProgramStates
    receives: _Tensors
    sends: _Tensors
    returns: _Tensors
    groups: list[Annotated[list[CountOrZero], Field(min_length=1)]] = Field(default_factory=list)
    group_streams: list[CountOrZero] = Field(default_factory=list)
    forward: Annotated[list[ProgramRun], Field(min_length=1)]
    first_forward: _Runs
    forward_after_backward: _Runs
    backward: Annotated[list[ProgramRun], Field(min_length=1)]
    first_backward: _Runs
    backward_after_backward: _Runs
    last_backward: _Runs
    reduction: _Runs
    optimizer: _Runs

    @field_validator("receives", "sends", "returns")
    @classmethod
    def _are_tensors(cls, texts: list[str]) -> list[str]:
        for text in texts:
            parse_tensor(text)
        return texts

    @property
    def passes(self) -> dict[str, list[ProgramRun]]:
        """The different passes by name."""
        return {name: runs for name in _PASSES if (runs := getattr(self, name))}

    def turn(self, names: Sequence[str], number: int) -> list[ProgramRun]:
        """Return the pass of a turn, which is that of turn 0 unless another one is recorded."""
        runs: list[ProgramRun] = getattr(self, names[number] if number < len(names) else names[0])
        default: list[ProgramRun] = getattr(self, names[0])
        return runs or default


class PipelineProgram(Strict):
    """A recorded pipeline.

    Args:
        version: of the format.
        torch, f32_products, command: as in `Program`.
        gpus: ranks of all stages. Stage k has the k-th part of them.
        pipeline: stages.
        tensor: ranks that share a batch.
        sequences, tokens: shape of a rank's microbatch.
        microbatches: of the scenario that was written with it; another one may have others.
        chunk_numbers: [virtual stages], the number of the chunk that each one runs.
        chunks: the different chunks.
        remarks: as in `Program`.
    """

    version: Literal[1]
    torch: Text
    f32_products: Literal["fp32", "tf32"] = "fp32"
    command: Text
    gpus: Count
    pipeline: Annotated[int, Field(ge=2, le=_MOST_STAGES)]
    tensor: Count = 1
    sequences: Count
    tokens: Count
    microbatches: Count = 1
    chunk_numbers: Annotated[list[CountOrZero], Field(min_length=2, max_length=_MOST_STAGES)]
    chunks: Annotated[list[ProgramChunk], Field(min_length=1)]
    remarks: _Texts

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.gpus % self.pipeline:
            raise ValueError(f"pipeline is {self.pipeline}, which does not divide gpus")
        if len(self.chunk_numbers) % self.pipeline:
            raise ValueError(
                f"its {len(self.chunk_numbers)} chunks do not fill {self.pipeline} stages"
            )
        if {*self.chunk_numbers} != {*range(len(self.chunks))}:
            raise ValueError("chunk_numbers are not those of the chunks")
        chunks = self.chunks_in_order
        for stage, (chunk, following) in enumerate(itertools.pairwise(chunks)):
            if chunk.sends != following.receives:
                raise ValueError(
                    f"stage {stage} sends other tensors than stage {stage + 1} receives"
                )
        for number in range(len(self.chunks)):
            for turn in range(len(BACKWARDS)):
                self.program(number, turn)  # checked as any program
            if self.chunks[number].reduction:
                self.program(number, reduces=True)
        return self

    @property
    def interleave(self) -> int:
        """Chunks of each stage."""
        return len(self.chunk_numbers) // self.pipeline

    @property
    def stage_gpus(self) -> int:
        """Ranks of a stage."""
        return self.gpus // self.pipeline

    @property
    def data(self) -> int:
        """Ranks of a stage with batches of their own."""
        return self.stage_gpus // self.tensor

    @property
    def chunks_in_order(self) -> list[ProgramChunk]:
        """[virtual stages], their chunks."""
        return [self.chunks[number] for number in self.chunk_numbers]

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(chunk.num_parameters for chunk in self.chunks_in_order)

    @property
    def passes(self) -> dict[str, list[ProgramRun]]:
        """The different passes of all chunks, by names such as "forward of chunk 0"."""
        return {
            f"{name} of chunk {number}": runs
            for number, chunk in enumerate(self.chunks)
            for name, runs in chunk.passes.items()
        }

    @property
    def forwards(self) -> list[ProgramRun]:
        """The runs of all forward passes."""
        return [run for chunk in self.chunks for run in chunk.forward]

    def program(
        self, number: int, turn: int = 0, stage: int = 0, *, reduces: bool = False
    ) -> Program:
        """Return the passes of a turn as a program of one stage.

        Args:
            number: of the chunk.
            turn: of both passes, in `FORWARDS` and `BACKWARDS`.
            stage: whose ranks run it.
            reduces: its backward pass is the reduction of gradients.
        """
        chunk, base = self.chunks[number], stage * self.stage_gpus
        names = "num_parameters", "num_trained", "states", "group_streams", "optimizer"
        backward = chunk.reduction if reduces else chunk.turn(BACKWARDS, turn)
        for ranks in chunk.groups:
            if max(ranks) >= self.stage_gpus:
                raise ValueError(
                    f"a group has ranks beyond {self.stage_gpus - 1}, the stage's last"
                )
        return Program(
            **{name: getattr(self, name) for name in _COMMON},
            **{name: getattr(chunk, name) for name in names},
            gpus=self.gpus,
            groups=[[base + rank for rank in ranks] for ranks in chunk.groups],
            forward=chunk.turn(FORWARDS, turn),
            backward=backward,
        )


@functools.lru_cache(maxsize=16)
def read_recording(version: FileVersion) -> Program | PipelineProgram:
    """Read a recording, with a pipeline or without; raises InputError as `parsed_file`."""
    return parsed_file(version, _parsed)


def _parsed(content: bytes) -> Program | PipelineProgram:
    if b'"chunk_numbers":' in content:
        return PipelineProgram.model_validate_json(content)
    return Program.model_validate_json(content)


def write_recording(recording: Program | PipelineProgram, file: Path) -> None:
    """Write a recording to a file (`write_packed`)."""
    write_packed(recording_text(recording), file)


def recording_text(recording: Program | PipelineProgram) -> str:
    """Write a recording as JSON: a line for each op, so that two recordings compare well."""
    if isinstance(recording, Program):
        return program_text(recording)
    data = recording.model_dump(mode="json", exclude_defaults=True)
    chunks = ",\n".join(map(_chunk_text, data.pop("chunks")))
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in data.items()]
    return "{\n" + ",\n".join([*lines, f' "chunks": [\n{chunks}\n ]']) + "\n}\n"


def _chunk_text(chunk: dict[str, Any]) -> str:
    passes = {name: chunk.pop(name) for name in _PASSES if name in chunk}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in chunk.items()]
    lines += [f" {json.dumps(name)}: [\n{runs_text(runs)}\n ]" for name, runs in passes.items()]
    return "{\n" + ",\n".join(lines) + "}"
