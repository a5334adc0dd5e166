"""Models of the shipped scenarios by name, such as `simtrain.models.llama3_70b`.

>>> from simtrain import models
>>> models.llama3_70b.num_query_groups
8

Each is the section `model` of the shipped scenario of that name; the file cites the source.
"""

from __future__ import annotations

import functools

from simtrain.base.resources import list_scenarios
from simtrain.errors import did_you_mean
from simtrain.scenario import Model
from simtrain.scenario.check import load_unchecked


@functools.cache
def __getattr__(name: str) -> Model:
    """Load a model at its first use."""
    known = list_scenarios()
    if name not in known:
        raise AttributeError(
            f"simtrain has no model {name!r}. {did_you_mean(name, known)}Known: {', '.join(known)}"
        )
    return load_unchecked(name).model


def __dir__() -> list[str]:
    return list_scenarios()
