"""How tokens reach their experts: a class for each way, and the steps of a layer that it orders.

Everything that others ask of a dispatcher by name is asked here, so a new one is a class and its
place in `_HOUSE`, or an entry point. Tensors are opaque to it: the layer makes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeAlias, TypeVar

from simtrain.base.plug_ins import Parts

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


class AllToAll(Dispatcher):
    """Megatron-LM's `MoEAlltoAllTokenDispatcher` (core/transformer/moe/token_dispatcher.py).

    The host copies the counts of tokens while rows are permuted, and waits for them before it
    launches the all-to-all ("before_ep_alltoall").
    """

    name = "all_to_all"
    summary = "sends a copy of each token for each of its experts, by all-to-alls"
    has_capacity = True
    megatron = "alltoall", None
    torchtitan = "standard"

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        routed = steps.all_to_all(steps.permute_sent())
        return steps.unpermute(steps.all_to_all_back(steps.experts(routed)))


class AllGather(Dispatcher):
    """Megatron-LM's `MoEAllGatherTokenDispatcher`, whose host waits before it permutes tokens."""

    name = "all_gather"
    summary = "sends all tokens to every rank, by all-gathers"
    overlaps_compute = False
    megatron = "allgather", None

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        routed = steps.permute(steps.gather(), counts_rows=True)
        return steps.reduce(steps.unpermute(steps.experts(routed)))


class DeepEP(Dispatcher):
    """DeepEP's normal kernels (deepseek-ai/DeepEP) in Megatron-LM's `_DeepepManager`.

    The host waits for the counts of received tokens before it launches the dispatch. The backward
    pass of each exchange is the other one; it knows the counts.
    """

    name = "deepep"
    summary = "sends each token once to each node and rank of its experts, by DeepEP's kernels"
    carries_fp8 = True
    needs_entry = True
    megatron = "flex", "deepep"
    torchtitan = "deepep"

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        steps.exchange_counts()
        routed = steps.permute(steps.map_received(steps.send_once()))
        return steps.return_once(steps.unpermute(steps.experts(routed)))


class HybridEP(Dispatcher):
    """HybridEP (deepseek-ai/DeepEP, branch hybrid-ep) in Megatron-LM's `_HybridEPManager`.

    Ranks gather the whole map of tokens to experts (`allgather_routing_map`), so each knows what it
    receives. The host waits for the number of rows before it launches the dispatch
    (`dispatch_with_permute` without `num_permuted_tokens`), whose permutation pads the rows of each
    expert in fp8 (`pad_multiple`, from `get_align_size_for_quantization`).
    """

    name = "hybridep"
    summary = "sends tokens as deepep does, by HybridEP's kernels"
    carries_fp8 = True
    pads_rows = True
    needs_entry = True
    megatron = "flex", "hybridep"
    torchtitan = "hybridep"

    def record(self, steps: ExpertSteps[TensorT]) -> TensorT:
        steps.gather_map()
        routed = steps.permute(steps.send_once())
        return steps.return_once(steps.unpermute(steps.experts(routed)))


_HOUSE: tuple[Dispatcher, ...] = (AllToAll(), AllGather(), DeepEP(), HybridEP())
DISPATCHERS = Parts[Dispatcher]("dispatchers", Dispatcher, _HOUSE)
"""The dispatchers by name; the first is the default."""
DEFAULT = _HOUSE[0]
if TYPE_CHECKING:
    ExpertDispatch: TypeAlias = str
else:
    ExpertDispatch = Literal[tuple(DISPATCHERS)]  # so that errors list the names
