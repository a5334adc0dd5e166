"""All algorithms of collectives. A new one is a class in a file of its own and a line here."""

from __future__ import annotations

from typing import Any

from simtrain.hardware.algorithms.algorithm import CollectiveAlgorithm
from simtrain.hardware.algorithms.hierarchical import Hierarchical
from simtrain.hardware.algorithms.ring import Ring
from simtrain.hardware.algorithms.switch import Switch
from simtrain.hardware.algorithms.tree import Tree

FALLBACK: CollectiveAlgorithm[Any] = Ring()
"""The algorithm of collectives that the chosen one cannot perform, as in NCCL."""
ALGORITHMS: dict[str, CollectiveAlgorithm[Any]] = {
    algorithm.name: algorithm for algorithm in (FALLBACK, Tree(), Hierarchical(), Switch())
}
"""The algorithms by name, in the order of their entries in profiles."""
