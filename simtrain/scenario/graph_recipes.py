"""CUDA graphs of a framework's recipes, which depend on the machine and on the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from simtrain.base.entry import Count, Strict, Text

GraphModule = Literal["attn", "mlp", "moe_router", "moe_preprocess"]
"""A part of a layer that a CUDA graph can capture, by the name of Megatron-LM."""


class GraphRecipe(Strict):
    """The CUDA graphs of recipes for some machines and models.

    Args:
        clusters: hardware profiles of the machines.
        experts, adapters: whether the models have experts, and whether they train adapters alone.
        max_hidden_size: the largest hidden size of the models; None for any.
        whole: whether a graph captures the whole iteration.
        modules: parts of a layer that graphs capture.
    """

    clusters: list[Text]
    experts: bool = False
    adapters: bool = False
    max_hidden_size: Count | None = None
    whole: bool = False
    modules: list[GraphModule] = Field(default_factory=list)

    def concerns(self, cluster: str, hidden_size: int, *, experts: bool, adapters: bool) -> bool:
        """Return whether a run on a cluster follows this recipe."""
        if cluster not in self.clusters or (experts, adapters) != (self.experts, self.adapters):
            return False
        return self.max_hidden_size is None or hidden_size <= self.max_hidden_size


def recipe_for(
    recipes: Sequence[GraphRecipe],
    cluster: str,
    hidden_size: int,
    *,
    experts: bool,
    adapters: bool,
) -> GraphRecipe | None:
    """Return the first recipe that a run follows; None if there is none."""
    for recipe in recipes:
        if recipe.concerns(cluster, hidden_size, experts=experts, adapters=adapters):
            return recipe
    return None
