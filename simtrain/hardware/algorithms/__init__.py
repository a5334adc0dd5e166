"""Algorithms of collectives: each is one object that says its entries, its time and its links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, create_model, model_validator

from simtrain.base.entry import Entry, Strict
from simtrain.base.strict_yaml import FieldError
from simtrain.hardware.algorithms.algorithm import CollectiveAlgorithm, Kind
from simtrain.hardware.algorithms.algorithm import NetworkLinks as NetworkLinks
from simtrain.hardware.algorithms.algorithm import NodeLinks as NodeLinks
from simtrain.hardware.algorithms.algorithm import Protocol as Protocol
from simtrain.hardware.algorithms.nccl import Hierarchical, Ring, Switch, Tree
from simtrain.units import Bytes

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


class AlgorithmRule(Strict):
    """Collectives of a `kind` with arrays of at most `up_to` use `algorithm`."""

    kind: Kind
    up_to: Bytes | None = None
    algorithm: Choice

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.algorithm == AUTO or self.kind in ALGORITHMS[self.algorithm].kinds:
            return self
        kinds = " or ".join(ALGORITHMS[self.algorithm].kinds)
        others = [name for name, other in ALGORITHMS.items() if self.kind in other.kinds]
        raise FieldError(
            ("algorithm",),
            f"only an {kinds} can use {self.algorithm}; this rule is for {self.kind}",
            f"write {', '.join(others)} or {AUTO}, or kind: {kinds}",
        )


# A word or a list of rules. The discriminator picks one first, so a wrong value gives one error.
_WordOrRules = Annotated[
    Annotated[Choice, Tag("word")]
    | Annotated[Annotated[list[AlgorithmRule], Field(min_length=1)], Tag("rules")],
    Discriminator(lambda value: "rules" if isinstance(value, list) else "word"),
]


class _Section(Strict):
    """The algorithms available to collectives across nodes, and how one is chosen.

    An algorithm without an entry is not available, except `ring`, which by default takes
    `inter_node.step_latency` at every step. `algorithm` is one of:

    - auto: the fastest; also the default, and used if no rule applies;
    - a name: every collective that supports it uses it, the others use a ring, as in NCCL;
    - a list of rules: the first rule that applies decides.
    """

    algorithm: Entry[_WordOrRules] | None = None

    def choice(self, kind: str, array_bytes: float) -> Choice:
        if self.algorithm is None:
            return AUTO
        if isinstance(self.algorithm.value, str):
            return self.algorithm.value
        fitting = (
            rule.algorithm
            for rule in self.algorithm.value
            if rule.kind == kind and (rule.up_to is None or array_bytes <= rule.up_to)
        )
        return next(fitting, AUTO)

    @model_validator(mode="after")
    def _available(self) -> Self:
        if not self.model_fields_set:
            raise FieldError(
                (),
                "names no algorithm",
                f"add an entry such as collectives.{FALLBACK.name}, or leave it out",
            )
        if self.algorithm is None:
            return self
        if isinstance(self.algorithm.value, str):
            self._check_available(self.algorithm.value, ("algorithm", "value"))
            return self
        reached: dict[Kind, float] = {}
        for place, rule in enumerate(self.algorithm.value):
            where = ("algorithm", "value", place)
            self._check_available(rule.algorithm, (*where, "algorithm"))
            up_to = float("inf") if rule.up_to is None else rule.up_to
            if up_to <= reached.get(rule.kind, -1.0):
                raise FieldError(
                    where,
                    f"an earlier rule for {rule.kind} already covers every array of this rule",
                    "order rules by up_to, smallest first, and the rule without up_to last",
                )
            reached[rule.kind] = up_to
        return self

    def _check_available(self, choice: Choice, path: tuple[str | int, ...]) -> None:
        if choice == AUTO or not ALGORITHMS[choice].needs_entry:
            return
        if getattr(self, choice) is not None:
            return
        raise FieldError(
            path,
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
