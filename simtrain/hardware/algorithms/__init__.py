"""Algorithms of collectives: each is one object that says its entries, its time and its links."""

from simtrain.hardware.algorithms.algorithm import (
    KINDS,
    CollectiveAlgorithm,
    Kind,
    NetworkLinks,
    NodeLinks,
)
from simtrain.hardware.algorithms.choice import AlgorithmRule, Collectives
from simtrain.hardware.algorithms.protocols import Protocol, Protocols
from simtrain.hardware.algorithms.registry import ALGORITHMS, FALLBACK

__all__ = [
    "ALGORITHMS",
    "FALLBACK",
    "KINDS",
    "AlgorithmRule",
    "CollectiveAlgorithm",
    "Collectives",
    "Kind",
    "NetworkLinks",
    "NodeLinks",
    "Protocol",
    "Protocols",
]
