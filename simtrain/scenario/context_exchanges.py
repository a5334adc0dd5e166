"""How context-parallel ranks exchange what attention needs, and the steps that each way orders.

Everything that others ask of an exchange by name is asked here, so that a new one is a class and a
line of `_HOUSE`, or a part of another package. Tensors are opaque to it: the layer makes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeAlias, TypeVar

from simtrain.base.plug_ins import Parts

TensorT = TypeVar("TensorT")


class AttentionSteps(ABC, Generic[TensorT]):
    """Steps of a layer's attention on one rank, each of which also has a backward pass."""

    @abstractmethod
    def tokens_for_heads(self) -> None:
        """Exchange tokens for heads: the rank then has more tokens, of fewer heads."""

    @abstractmethod
    def heads_for_tokens(self, y: TensorT) -> TensorT:
        """Exchange heads for tokens: the rank then has its own tokens, of all heads."""

    @abstractmethod
    def attend(self) -> TensorT:
        """Attend to the rank's own keys, in one kernel."""

    @abstractmethod
    def attend_around_ring(self) -> TensorT:
        """Attend to the keys of all ranks, which pass them around a ring, in one kernel each."""

    @abstractmethod
    def attend_to_gathered(self) -> TensorT:
        """Gather the keys of all ranks, and attend to them in one kernel for each slice."""


class ContextExchange(ABC):
    """A way in which context-parallel ranks, which divide each sequence, compute attention."""

    name: ClassVar[str]
    """What a scenario writes."""
    summary: ClassVar[str]
    """What it does, for the description of the field."""
    is_fused: ClassVar[bool] = True
    """Whether it runs fused kernels of attention. Otherwise it runs unfused ones."""
    slices: ClassVar[int] = 2
    """Slices of each sequence on a rank: 2, one from each half, balance causal attention."""
    has_subgroups: ClassVar[bool] = False
    """Whether parallelism.context_a2a divides the ranks into subgroups."""
    takes_windows: ClassVar[bool] = False
    """Whether attention can have a window."""
    takes_latent: ClassVar[bool] = False
    """Whether keys and values can differ in size (latent attention)."""
    takes_documents: ClassVar[bool] = False
    """Whether sequences can be packed."""
    takes_groups: ClassVar[bool] = True
    """Whether queries can share keys and values."""
    takes_mamba: ClassVar[bool] = True
    """Whether Mamba-2 layers can be beside attention: they put two slices of a rank in order."""

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        """Return the number of ranks that exchange tokens for heads; 1 if none do.

        Args:
            num_ranks: context-parallel ranks.
            subgroup: parallelism.context_a2a.
        """
        return 1

    @abstractmethod
    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Put the steps of a layer in order; return the output of the rank's tokens."""


class Ring(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVP2P` (ring attention; Liu et al. 2023)."""

    name = "p2p"
    summary = "passes keys and values around a ring, overlapped with attention"
    takes_latent = True
    takes_documents = True

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Attend around the ring."""
        return steps.attend_around_ring()


class AllGather(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVAllGather` (Dubey et al. 2024, Section 3.3.2)."""

    name = "all_gather"
    summary = "gathers all keys and values before attention"

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Gather, and attend."""
        return steps.attend_to_gathered()


class AllToAll(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndQKVOA2A` (Ulysses; Jacobs et al. 2023)."""

    name = "a2a"
    summary = "(Ulysses) exchanges tokens for heads"
    takes_windows = True

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        """Return all ranks."""
        return num_ranks

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Exchange, attend, and exchange back."""
        steps.tokens_for_heads()
        return steps.heads_for_tokens(steps.attend())


class Hierarchical(ContextExchange):
    """Transformer Engine's `AttnFuncWithCPAndKVP2P` with all-to-alls in subgroups."""

    name = "a2a+p2p"
    summary = (
        "exchanges tokens for heads within subgroups, and passes keys and values around rings "
        "between them"
    )
    has_subgroups = True
    takes_latent = True

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        """Return the ranks of a subgroup."""
        return subgroup or 1

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Exchange, attend around the ring, and exchange back."""
        steps.tokens_for_heads()
        return steps.heads_for_tokens(steps.attend_around_ring())


_HOUSE: tuple[ContextExchange, ...] = (Ring(), AllGather(), AllToAll(), Hierarchical())
CONTEXT_EXCHANGES = Parts[ContextExchange]("context_exchanges", ContextExchange, _HOUSE)
"""The exchanges by name; the first is the default."""
if TYPE_CHECKING:
    ContextCommunication: TypeAlias = str
else:
    ContextCommunication = Literal[tuple(CONTEXT_EXCHANGES)]  # so that errors list the names
