"""The section of a hardware profile on how GPUs are put together: nodes and what joins them."""

from __future__ import annotations

import itertools
from typing import Annotated, Self

from pydantic import Field, model_validator

from simtrain.entry import Count, Entry, Strict, Text
from simtrain.strict_yaml import FieldError


class Level(Strict):
    """A level of the network, such as leaf or spine: `nodes` share each of its units.

    `oversubscription` is that of a unit's uplinks: how many times the bandwidth of its nodes'
    adapters is that of the links which leave it.
    """

    name: Text
    nodes: Count
    oversubscription: Annotated[float, Field(ge=1)]


class Cluster(Strict):
    """How many nodes there are, how many GPUs each has, and what joins them.

    `gpus_per_nvlink_domain` says how many GPUs NVLink joins, where these are those of several nodes
    (72 of 4 a node in a GB200 NVL72); by default they are those of a node. `levels` are those of
    the network, the narrowest first; without them it joins all nodes alike.
    """

    gpus_per_node: Entry[Count]
    num_nodes: Entry[Count]
    gpus_per_nvlink_domain: Entry[Count] | None = None
    levels: Entry[Annotated[list[Level], Field(min_length=1)]] | None = None

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.gpus_per_node.value * self.num_nodes.value

    @property
    def nvlink_gpus(self) -> int:
        """GPUs that NVLink joins."""
        return (self.gpus_per_nvlink_domain or self.gpus_per_node).value

    @property
    def domains(self) -> int | tuple[int, ...]:
        """GPUs that NVLink joins, and those of each level of the network: `mesh.Domains`."""
        if self.levels is None:
            return self.nvlink_gpus
        per_node = self.gpus_per_node.value
        return (self.nvlink_gpus, *(per_node * level.nodes for level in self.levels.value))

    @property
    def oversubscriptions(self) -> tuple[float, ...]:
        """The oversubscription of each level's uplinks."""
        return tuple(level.oversubscription for level in self.levels.value) if self.levels else ()

    @model_validator(mode="after")
    def _nested(self) -> Self:
        """Each unit holds whole units of the level below it."""
        per_node, nvlink = self.gpus_per_node.value, self.nvlink_gpus
        if nvlink % per_node:
            raise FieldError(
                ("gpus_per_nvlink_domain", "value"),
                f"{nvlink} is no multiple of gpus_per_node ({per_node})",
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
                    f"{nodes} nodes are no multiple of the {smaller} of {below}",
                    f"each level joins whole units of the one below: write {2 * smaller} or "
                    f"another multiple of {smaller}",
                )
        names = [level.name for level in self.levels.value]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise FieldError(
                    ("levels", "value", place, "name"),
                    f'"{name}" is the name of two levels',
                    "give each level a name of its own",
                )
        return self
