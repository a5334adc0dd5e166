"""A recorded pipeline on the terms of the engine: a step for each chunk, stage and turn.

A turn says what has run before on the chunk (`base.pipeline_program.FORWARDS`, `BACKWARDS`): with
fully_shard, the first pass gathers parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from simtrain.base.input_file import FileVersion
from simtrain.base.mesh import Domains
from simtrain.base.pipeline_program import BACKWARDS, PipelineProgram, read_recording
from simtrain.base.program import parse_tensor
from simtrain.scenario.software import Kernels
from simtrain.workload.chunk import Chunk, Parameters
from simtrain.workload.model_chunks import ModelChunks, number_distinct
from simtrain.workload.ops import Op
from simtrain.workload.passes import Pass, PassRecord
from simtrain.workload.recorded.step import RecordedModel, RecordedStep
from simtrain.workload.work import Work

FIRST, AFTER_BACKWARD, LAST = 1, 2, 3
"""Turns of passes; 0 is that of a forward pass after another one, or of a backward pass after a
forward pass.
"""
_REDUCES = -1


@dataclass(frozen=True)
class RecordedChunk(RecordedModel):
    """The parameters of a virtual stage, as a block.

    Args:
        number: of its recorded chunk.
        stage: whose ranks run it.
    """

    number: int = 0
    stage: int = 0


@dataclass(frozen=True)
class StageParameters(Parameters):
    """The parameters of a rank with its chunks, which decide its optimizer step."""

    chunks: tuple[RecordedChunk, ...] = ()


@dataclass(frozen=True, eq=False)
class RecordedPipeline:
    """A recorded pipeline on a cluster.

    Args:
        program: the recording.
        ranks: [virtual stages], the stage of each one.
        domains: of the cluster.
        kernels: of the software stack.
    """

    program: PipelineProgram
    ranks: tuple[int, ...]
    domains: Domains
    kernels: Kernels
    _steps: dict[tuple[int, int, int], RecordedStep] = field(default_factory=dict, repr=False)

    @cached_property
    def blocks(self) -> tuple[RecordedChunk, ...]:
        """[virtual stages], what each one runs; of equal ones, all have the first one's stage."""
        first: dict[object, RecordedChunk] = {}
        blocks = []
        for number, stage in zip(self.program.chunk_numbers, self.ranks, strict=True):
            chunk = self.program.chunks[number]
            block = RecordedChunk(
                chunk.num_parameters, chunk.num_trained, number=number, stage=stage
            )
            step = self.step(block, 0)
            groups = (step.group(place, is_data=False) for place in range(len(chunk.groups)))
            blocks.append(first.setdefault((number, *groups), block))
        return tuple(blocks)

    @cached_property
    def model_chunks(self) -> ModelChunks:
        """The chunks of the model."""
        chunks = [Chunk(((block, 1),)) for block in self.blocks]
        return ModelChunks(tuple(dict.fromkeys(chunks)), number_distinct(chunks))

    @cached_property
    def stage_parameters(self) -> tuple[StageParameters, ...]:
        """[stages], parameters of all ranks of a stage."""
        stages = []
        for stage in range(self.program.pipeline):
            of_stage = zip(self.blocks, self.ranks, strict=True)
            blocks = tuple(block for block, rank in of_stage if rank == stage)
            total = sum(block.num_parameters for block in blocks)
            stages.append(StageParameters(total, total, 0, 0, chunks=blocks))
        return tuple(stages)

    @cached_property
    def later_turns(self) -> tuple[RecordedTurn, ...]:
        """The passes of each turn but turn 0."""
        return tuple(RecordedTurn(self, turn) for turn in range(1, len(BACKWARDS)))

    @property
    def reduces_last(self) -> bool:
        """Whether the last backward pass of a chunk differs from those before it."""
        return any(chunk.last_backward for chunk in self.program.chunks)

    @property
    def reduces_after(self) -> bool:
        """Whether gradients are reduced after the last backward passes."""
        return any(chunk.reduction for chunk in self.program.chunks)

    def step(self, block: RecordedChunk, turn: int) -> RecordedStep:
        """Return the passes of a chunk in a turn."""
        key = block.number, turn, block.stage
        if key not in self._steps:
            reduces = turn == _REDUCES
            program = self.program.program(block.number, max(turn, 0), block.stage, reduces=reduces)
            self._steps[key] = RecordedStep(program, self.domains, self.kernels)
        return self._steps[key]

    def reduction(self, block: RecordedChunk) -> RecordedStep | None:
        """Return a step whose backward pass reduces the gradients of a chunk; None without."""
        has = self.program.chunks[block.number].reduction
        return self.step(block, _REDUCES) if has else None

    def record_of(self, pass_: Pass, turn: int = 0) -> PassRecord:
        """Return the ops of a pass in a turn."""
        ((block, _),) = pass_.chunk.runs
        assert isinstance(block, RecordedChunk), "chunks of a recorded pipeline are recorded"
        if pass_.kind == "R":
            reduction = self.reduction(block)
            return reduction.backward if reduction else PassRecord((), (), (0,))
        return self.step(block, turn).record_of(pass_)

    def update_of(self, parameters: Parameters) -> tuple[Op, ...]:
        """Return the ops of the optimizer of a rank."""
        assert isinstance(parameters, StageParameters), "stages of a recorded pipeline"
        return tuple(op for block in parameters.chunks for op in self.step(block, 0).update)

    @property
    def update(self) -> tuple[Op, ...]:
        """The ops of the optimizers of all stages."""
        return tuple(op for stage in self.stage_parameters for op in self.update_of(stage))

    @cached_property
    def sent_bytes(self) -> tuple[float, ...]:
        """The different sizes of messages."""
        return tuple(dict.fromkeys(self._message_bytes)) or (0.0,)

    @cached_property
    def message_sizes(self) -> tuple[int, ...]:
        """The size of each boundary's activations, then of each one's gradients.

        Boundary k is that after virtual stage k; sizes are places in `sent_bytes`.
        """
        places = {size: place for place, size in enumerate(self.sent_bytes)}
        return tuple(places[size] for size in self._message_bytes)

    @cached_property
    def _message_bytes(self) -> list[float]:
        chunks = self.program.chunks_in_order
        returned = [*(chunk.returns for chunk in chunks[1:]), []]
        boundaries = [*(chunk.sends for chunk in chunks), *returned]
        return [float(sum(parse_tensor(text).num_bytes for text in each)) for each in boundaries]

    def unpriced(self, seconds: Callable[[Work], float]) -> dict[str, float]:
        """Return the share of the time that ops without a rule take, by name, of all stages.

        A stage counts with its passes as they are recorded.
        """
        shares: dict[str, float] = {}
        for block in self.blocks:
            for name, share in self.step(block, 0).unpriced(seconds).items():
                shares[name] = shares.get(name, 0.0) + share / len(self.blocks)
        return shares


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTurn:
    """The passes of a recorded pipeline in a turn."""

    pipeline: RecordedPipeline
    turn: int

    def record_of(self, pass_: Pass) -> PassRecord:
        """Return the ops of a pass."""
        return self.pipeline.record_of(pass_, self.turn)


@functools.lru_cache(maxsize=64)
def recorded_pipeline(
    file: FileVersion, ranks: tuple[int, ...], domains: Domains, kernels: Kernels
) -> RecordedPipeline:
    """Return a recorded pipeline on a cluster; equal calls return one object."""
    program = read_recording(file)
    assert isinstance(program, PipelineProgram), "the file has a pipeline"
    return RecordedPipeline(program, ranks, domains, kernels)
