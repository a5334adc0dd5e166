"""Algorithms of collectives: each is one object that says its entries, its time and its links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from pydantic import create_model, model_validator

from simtrain.base.entry import Entry, Strict
from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms.algorithm import CollectiveAlgorithm
from simtrain.hardware.algorithms.algorithm import NetworkLinks as NetworkLinks
from simtrain.hardware.algorithms.algorithm import NodeLinks as NodeLinks
from simtrain.hardware.algorithms.algorithm import Protocol as Protocol
from simtrain.hardware.algorithms.nccl import Hierarchical, Ring, Switch, Tree

FALLBACK: CollectiveAlgorithm[Any] = Ring()
"""The algorithm of collectives that the chosen one cannot perform, as in NCCL."""
ALGORITHMS: dict[str, CollectiveAlgorithm[Any]] = {
    algorithm.name: algorithm for algorithm in (FALLBACK, Tree(), Hierarchical(), Switch())
}
"""The algorithms by name, in the order of their entries in profiles."""


AUTO = "auto"
if TYPE_CHECKING:
    Choice: TypeAlias = str
else:
    Choice = Literal[(AUTO, *ALGORITHMS)]  # so that errors list the names


class _Section(Strict):
    """The algorithms available to collectives across nodes, and how one is chosen.

    An algorithm without an entry is not available, except `ring`, which by default takes
    `inter_node.step_latency` at every step. `algorithm` is one of:

    - auto: the fastest; also the default;
    - a name: every collective that supports it uses it, the others use a ring, as in NCCL.
    """

    algorithm: Entry[Choice] | None = None

    @property
    def choice(self) -> Choice:
        return self.algorithm.value if self.algorithm else AUTO

    @model_validator(mode="after")
    def _available(self) -> Self:
        if not self.model_fields_set:
            raise FieldError(
                (),
                "names no algorithm",
                f"add an entry such as collectives.{FALLBACK.name}, or leave it out",
            )
        choice = self.choice
        if choice == AUTO or not ALGORITHMS[choice].needs_entry or getattr(self, choice):
            return self
        raise FieldError(
            ("algorithm", "value"),
            f"{choice} needs the entry collectives.{choice}, which is missing",
            f"add collectives.{choice}, or write {AUTO} or {FALLBACK.name}",
        )


if TYPE_CHECKING:

    class Collectives(_Section):
        """The section, with an entry for each algorithm by its name, or None."""

        def __getattr__(self, name: str) -> Any: ...

else:
    Collectives = create_model(
        "Collectives",
        __base__=_Section,
        __module__=__name__,
        __doc__=_Section.__doc__,
        **{name: (algorithm.entry_type | None, None) for name, algorithm in ALGORITHMS.items()},
    )


def available(section: Collectives | None) -> Iterator[tuple[CollectiveAlgorithm[Any], Any]]:
    """Yield the algorithms of a profile's section, or of none, with their entries."""
    for name, algorithm in ALGORITHMS.items():
        entry = None if section is None else getattr(section, name)
        if entry is not None or not algorithm.needs_entry:
            yield algorithm, entry
