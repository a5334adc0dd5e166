"""Section `cluster` of a hardware profile: nodes, NVLink domains and network levels."""

from __future__ import annotations

import itertools
from typing import Annotated, Self

from pydantic import Field, model_validator

from simtrain.base.entry import Count, Entry, Strict, Text
from simtrain.base.mesh import Domains
from simtrain.base.strict_yaml import FieldError


class Level(Strict):
    """A level of the network, such as leaf or spine; each of its units joins `nodes` nodes.

    `oversubscription` is the bandwidth of a unit's adapters divided by that of its uplinks.
    """

    name: Text
    nodes: Count
    oversubscription: Annotated[float, Field(ge=1)]


class Cluster(Strict):
    """The cluster's size and topology.

    `gpus_per_nvlink_domain` is for NVLink domains that span nodes (72 GPUs in nodes of 4 in a GB200
    NVL72); by default a domain is a node. `levels` lists the network's levels, narrowest first;
    without it, all nodes are connected at full bandwidth.
    """

    gpus_per_node: Entry[Count]
    num_nodes: Entry[Count]
    gpus_per_nvlink_domain: Entry[Count] | None = None
    levels: Entry[Annotated[list[Level], Field(min_length=1)]] | None = None

    @property
    def num_gpus(self) -> int:
        """Number of GPUs in the cluster."""
        return self.gpus_per_node.value * self.num_nodes.value

    @property
    def nvlink_gpus(self) -> int:
        """Number of GPUs in an NVLink domain."""
        return (self.gpus_per_nvlink_domain or self.gpus_per_node).value

    @property
    def domains(self) -> Domains:
        """GPUs of an NVLink domain, and of each network level if there are any."""
        if self.levels is None:
            return self.nvlink_gpus
        per_node = self.gpus_per_node.value
        return (self.nvlink_gpus, *(per_node * level.nodes for level in self.levels.value))

    def domains_of(self, num_gpus: int) -> Domains:
        """GPUs of an NVLink domain that a job uses, and of each network level if there are any.

        If a job does not fill domains of several nodes, a scheduler gives it as many nodes of each
        as divide it equally, such as 16 of the 18 of a GB200 NVL72 for 64 nodes, so that groups of
        ranks do not straddle domains (Slurm's --segment; NVIDIA-NeMo/Megatron-Bridge,
        scripts/performance/utils/executors.py). If that is not more than half of each domain, the
        domains are filled instead.
        """
        whole, per_node = self.nvlink_gpus, self.gpus_per_node.value
        if num_gpus <= whole or whole == per_node or self.levels:
            return self.domains
        parts = (part for part in range(whole, whole // 2, -per_node) if not num_gpus % part)
        return next(parts, whole)

    def fills_domain(self, num_ranks: int) -> bool:
        """Whether a group with `num_ranks` in each NVLink domain leaves no room for another one.

        A job may use only a part of a domain of several nodes (`domains_of`).
        """
        is_part = self.gpus_per_nvlink_domain and 2 * num_ranks > self.nvlink_gpus
        return bool(is_part) or num_ranks == self.nvlink_gpus

    @property
    def oversubscriptions(self) -> tuple[float, ...]:
        """Oversubscription of each level's uplinks."""
        return tuple(level.oversubscription for level in self.levels.value) if self.levels else ()

    @model_validator(mode="after")
    def _nested(self) -> Self:
        """Check that each unit holds whole units of the level below."""
        per_node, nvlink = self.gpus_per_node.value, self.nvlink_gpus
        if nvlink % per_node:
            raise FieldError(
                ("gpus_per_nvlink_domain", "value"),
                f"{nvlink} is not a multiple of gpus_per_node ({per_node})",
                f"an NVLink domain joins whole nodes: write a multiple of {per_node}",
            )
        if self.levels is None:
            return self
        sizes = [nvlink // per_node, *(level.nodes for level in self.levels.value)]
        for place, (smaller, nodes) in enumerate(itertools.pairwise(sizes)):
            if nodes <= smaller or nodes % smaller:
                below = self.levels.value[place - 1].name if place else "an NVLink domain"
                raise FieldError(
                    ("levels", "value", place, "nodes"),
                    f"{nodes} nodes are not a larger multiple of the {smaller} nodes of {below}",
                    f"each level joins whole units of the level below: write {2 * smaller} or "
                    f"another multiple of {smaller}",
                )
        names = [level.name for level in self.levels.value]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise FieldError(
                    ("levels", "value", place, "name"),
                    f'two levels are named "{name}"',
                    "give each level its own name",
                )
        return self
