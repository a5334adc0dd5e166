"""What an algorithm of collectives answers, and the links on which it is timed.

Everything that others ask of an algorithm by name is asked here, so that a new one is a class in a
file of its own and a line of `__init__.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import Field

from simtrain.base.entry import Entry, Fraction, Strict, Text
from simtrain.base.mesh import Group
from simtrain.units import NonNegativeSeconds

Kind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter"]
"""Collectives that several algorithms can perform."""
KINDS: tuple[Kind, ...] = get_args(Kind)
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = KINDS

EntryT = TypeVar("EntryT")


class NodeLinks(ABC):
    """A collective among GPUs of one node, and the node's links.

    Links are read when they are asked for: a node of one GPU has none.
    """

    kind: str
    array_bytes: float
    num_ranks: int

    @abstractmethod
    def measured_s(self, kind: str) -> float:
        """Return the time of a kind of collective on the same array, by the measured curves."""

    @property
    @abstractmethod
    def bytes_per_s(self) -> float:
        """Bandwidth of a GPU's NVLink, one way."""

    @property
    @abstractmethod
    def all_reduce_latency_s(self) -> float:
        """Latency of a measured all-reduce."""

    @property
    @abstractmethod
    def most_ranks_measured(self) -> int:
        """Ranks of the largest measured all-reduce."""


@dataclass(frozen=True, slots=True)
class NetworkLinks:
    """A collective of a group on several nodes, and the links between and inside the nodes.

    Args:
        kind: one of `KINDS`.
        array_bytes: size of the whole array.
        group: the ranks, spread evenly over their nodes.
        step_s: latency of a step between nodes.
        bytes_per_s: the group's bandwidth out of a node. All groups of the job are assumed to
            communicate at the same time, so it is a share in proportion to the group's ranks on
            that node.
        inside_s: time in which the bytes of a ring over all ranks cross the links inside a node.
        node: the same collective among the group's ranks on one node.
    """

    kind: str
    array_bytes: float
    group: Group
    step_s: float
    bytes_per_s: float
    inside_s: float
    node: NodeLinks


class CollectiveAlgorithm(ABC, Generic[EntryT]):
    """An algorithm of a library's collectives.

    The library takes the algorithm with the smallest estimate, as NCCL does, unless a profile says
    otherwise (`Collectives`). None as a time says that the algorithm cannot perform the collective.
    """

    name: ClassVar[str]
    """What a profile writes: the name of its entry in section `collectives`, and of the choice."""
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    """The collectives that it can perform."""
    entry_type: ClassVar[Any]
    """Type of its entry: `Protocols`, or a section of entries."""
    needs_entry: ClassVar[bool] = True
    """Whether a profile without its entry lacks it."""
    node_latencies: ClassVar[tuple[str, ...]] = ()
    """Times in its entry that faster links inside a node shorten; names as for `with_changed`."""
    network_latencies: ClassVar[tuple[str, ...]] = ()
    """Times in its entry that a faster network shortens."""
    limits_node_links: ClassVar[bool] = False
    """Whether its entry is a share of the links inside a node; otherwise of the network's."""

    def in_node_s(self, entry: EntryT, links: NodeLinks) -> float | None:
        """Return the time among GPUs of one node; None if the measured curves include it."""
        return None

    @abstractmethod
    def across_nodes_s(self, entry: EntryT, links: NetworkLinks) -> float | None:
        """Return the time over several nodes."""

    def check(self, entry: EntryT, most_ranks_measured: int, nvlink_gpus: int) -> None:
        """Check the entry against the rest of a profile.

        Args:
            entry: its entry.
            most_ranks_measured: ranks of the largest measured all-reduce inside a node.
            nvlink_gpus: GPUs that NVLink connects.

        Raises:
            FieldError: the entry contradicts another one.
        """


class Protocol(Strict):
    """Latencies and efficiency of one NCCL protocol (LL, LL128, Simple).

    A collective takes `base_latency` once, `node_step` for each step between GPUs of a node and
    `network_step` (by default `inter_node.step_latency`) for each step between nodes. It reaches
    `efficiency` of the group's bandwidth.
    """

    name: Text
    base_latency: NonNegativeSeconds
    node_step: NonNegativeSeconds
    network_step: NonNegativeSeconds | None = None
    efficiency: Fraction


Protocols: TypeAlias = Entry[Annotated[list[Protocol], Field(min_length=1)]]


@dataclass(frozen=True, slots=True)
class Steps:
    """A protocol's latencies (base, per step in a node, per step between nodes) and efficiency."""

    base_s: float
    node_s: float
    network_s: float
    efficiency: float = 1.0


class SteppedAlgorithm(CollectiveAlgorithm[EntryT]):
    """An algorithm with protocols, each of which has a latency per step."""

    entry_type = Protocols
    node_latencies = ("*.node_step",)
    network_latencies = ("*.base_latency", "*.network_step")


def steps_of(protocols: Protocols, network_step_s: float) -> Iterator[Steps]:
    """Yield the latencies of each protocol.

    Args:
        protocols: an entry of section `collectives`.
        network_step_s: latency of a step between nodes if a protocol has none of its own.
    """
    for protocol in protocols.value:
        step_s = protocol.network_step
        yield Steps(
            protocol.base_latency,
            protocol.node_step,
            network_step_s if step_s is None else step_s,
            protocol.efficiency,
        )
