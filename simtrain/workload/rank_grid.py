"""Tensor-parallel ranks that split matrices in a way of their own (`scenario.tensor_splits`).

`tape` gives the grid of its microbatch the layers that it splits: the grid records their products
and its moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from simtrain.base.mesh import Group
from simtrain.scenario.model import Normalization
from simtrain.workload.ops import Tensor

if TYPE_CHECKING:
    from simtrain.workload.tape import Tape


class RankGrid(ABC):
    """The ranks, and the layers that they split."""

    @property
    @abstractmethod
    def ranks_of_sequences(self) -> int:
        """Ranks that divide the sequences of a microbatch."""

    @property
    @abstractmethod
    def ranks_of_hidden(self) -> int:
        """Ranks that divide the channels of hidden states."""

    @property
    @abstractmethod
    def inner(self) -> Group:
        """Ranks that divide heads, the channels of the MLP and the logits."""

    @property
    @abstractmethod
    def everyone(self) -> Group:
        """All ranks."""

    @abstractmethod
    def first_linear(
        self,
        tape: Tape,
        x: Tensor,
        outputs: int,
        name: str,
        *,
        bias: bool,
        adds_bias: bool,
        output_name: str,
        tied: str,
        holds_weight: bool,
        is_output_layer: bool,
    ) -> Tensor:
        """Record the first layer of attention or MLP, or the output layer (`column_linear`)."""

    @abstractmethod
    def second_linear(
        self, tape: Tape, x: Tensor, outputs: int | None, name: str, *, bias: bool
    ) -> Tensor:
        """Record the second layer of attention or MLP (`row_linear`)."""

    @abstractmethod
    def norm(self, tape: Tape, x: Tensor, name: str, kind: Normalization, vectors: int) -> Tensor:
        """Record a norm with a number of vectors of parameters."""

    @abstractmethod
    def look_up(self, tape: Tape, vocab: int, tied: str) -> Tensor:
        """Record the lookup of word embeddings."""

    @abstractmethod
    def positions(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the sum of `x` and learned position embeddings."""
