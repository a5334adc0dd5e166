"""What a dispatcher of tokens answers, and the steps of a layer that it puts in order.

Everything that others ask of a dispatcher by name is asked here, so that a new one is a class in a
file of its own and a line of `registry.py`. Tensors are opaque to it: the layer makes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeAlias, TypeVar

TensorT = TypeVar("TensorT")
Routed: TypeAlias = tuple[TensorT, TensorT]
"""Tokens, and the probabilities of their experts."""


class ExpertSteps(ABC, Generic[TensorT]):
    """Steps of a layer's experts on one rank, each of which also has a backward pass.

    `has_sizes` says whether the numbers of rows follow from the settings (a capacity). Otherwise
    the host needs the counts of tokens before it can launch what depends on them, and its run-ahead
    ends there.
    """

    has_sizes: bool

    @abstractmethod
    def permute_sent(self) -> Routed[TensorT]:
        """Exchange the counts of tokens; copy each of the rank's tokens for each of its experts."""

    @abstractmethod
    def all_to_all(self, routed: Routed[TensorT]) -> Routed[TensorT]:
        """Send each row to its expert's rank, probabilities separately; sort rows by expert."""

    @abstractmethod
    def all_to_all_back(self, y: TensorT) -> TensorT:
        """Sort rows by rank and send them back."""

    @abstractmethod
    def gather(self) -> Routed[TensorT]:
        """All-gather the tokens and probabilities of all ranks."""

    @abstractmethod
    def reduce(self, y: TensorT) -> TensorT:
        """Reduce-scatter the sums of all tokens."""

    @abstractmethod
    def exchange_counts(self) -> None:
        """Find the ranks and nodes of each token; ranks tell each other how many they send."""

    @abstractmethod
    def gather_map(self) -> None:
        """All-gather the map of tokens to experts; find what each rank sends and receives."""

    @abstractmethod
    def send_once(self) -> Routed[TensorT]:
        """Send each token once to each rank of its experts, once over the network to a node."""

    @abstractmethod
    def return_once(self, y: TensorT) -> TensorT:
        """Send sums back on the same way; nodes add them before the network, and ranks after."""

    @abstractmethod
    def map_received(self, received: Routed[TensorT]) -> Routed[TensorT]:
        """Turn the indices of the received tokens' experts into a map."""

    @abstractmethod
    def permute(self, received: Routed[TensorT], *, counts_rows: bool = False) -> Routed[TensorT]:
        """Copy each received token for each of its experts on this rank.

        With `counts_rows`, the host needs the number of copies first.
        """

    @abstractmethod
    def unpermute(self, y: TensorT) -> TensorT:
        """Add up the rows of each token that was permuted last."""

    @abstractmethod
    def experts(self, routed: Routed[TensorT]) -> TensorT:
        """Run the experts of this rank."""


class Dispatcher(ABC):
    """A way to bring tokens to their experts and their outputs back."""

    name: ClassVar[str]
    """What a scenario writes, and the name of its entry in section `dispatchers` of profiles."""
    summary: ClassVar[str]
    """What it does with a token, for the description of the field."""
    overlaps_compute: ClassVar[bool] = True
    """Whether the shared expert, or a merged pass, can run while it exchanges tokens."""
    has_capacity: ClassVar[bool] = False
    """Whether it can drop and pad tokens to a capacity."""
    carries_fp8: ClassVar[bool] = False
    """Whether tokens can travel in fp8."""
    pads_rows: ClassVar[bool] = False
    """Whether its kernels pad the rows of each expert for products in fp8. Otherwise a kernel of
    the experts does."""
    needs_entry: ClassVar[bool] = False
    """Whether its kernels need an entry in a profile. Others use the library of collectives."""
    megatron: ClassVar[tuple[str, str | None]]
    """Megatron-LM's --moe-token-dispatcher-type and --moe-flex-dispatcher-backend for it."""
    torchtitan: ClassVar[str | None] = None
    """torchtitan's name of it."""

    @abstractmethod
    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        """Put the steps of a layer in order; return the output of its experts for each token."""
