"""Protocols of an algorithm: latencies per step, and the reached share of the bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field

from simtrain.base.entry import Entry, Fraction, Strict, Text
from simtrain.hardware.algorithms.algorithm import CollectiveAlgorithm, EntryT
from simtrain.units import NonNegativeSeconds


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
