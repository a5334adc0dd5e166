"""A training step that the user has recorded: what a plan asks of it in place of a model.

A guest that reads programs implements `RecordedStep` (`scenario.schema`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass, replace
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import Work

Bytes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes that a rank holds before the recorded microbatch."""

    parameters: int
    optimizer: int
    gradients: int
    other: int


@dataclass(frozen=True, slots=True, eq=False)
class BytesOverTime:
    """Memory of a pass, op by op.

    Args:
        names: [ops], module and name of each op.
        held: [ops], bytes while each op runs, relative to the start of the pass.
        after: [ops], bytes after each op.
        gradients: [ops], bytes of gradients of parameters while each op runs.
    """

    names: tuple[str, ...]
    held: Bytes
    after: Bytes
    gradients: Bytes

    def shifted(self, held_bytes: int, gradient_bytes: int) -> BytesOverTime:
        return replace(
            self,
            held=self.held + held_bytes,
            after=self.after + held_bytes,
            gradients=self.gradients + gradient_bytes,
        )


class RecordedStep(ABC):
    """A recorded training step on a cluster, whose last microbatch stands for all of them."""

    @property
    @abstractmethod
    def model(self) -> RecordedModel:
        """The parameters of the model."""

    @property
    @abstractmethod
    def states(self) -> StateBytes:
        """What a rank holds before the microbatch."""

    @property
    @abstractmethod
    def memory(self) -> tuple[BytesOverTime, BytesOverTime, BytesOverTime]:
        """Memory of the forward pass, the backward pass and the optimizer."""

    @property
    @abstractmethod
    def update(self) -> tuple[Op, ...]:
        """The ops of the optimizer."""

    @property
    @abstractmethod
    def forward(self) -> PassRecord:
        """The ops of the forward pass."""

    @property
    @abstractmethod
    def backward(self) -> PassRecord:
        """The ops of the backward pass."""

    @abstractmethod
    def remarks(self, seconds: Callable[[Work], float]) -> Iterator[str]:
        """Say what is simulated of the program; `seconds` is the time of a work alone."""


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """The model of a recording, as a block that has its parameters and no ops."""

    num_parameters: int
    num_trained: int
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        y = tape.tensor("output", x.rows, x.width)
        frozen = self.num_parameters - self.num_trained
        parameters = Parameter(self.num_trained), Parameter(frozen, is_frozen=True)
        return tape.record("recorded model", (x,), y, (), parameters=parameters)
