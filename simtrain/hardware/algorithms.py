"""The section of a hardware profile on the algorithms that its collectives may take."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from simtrain.entry import Entry, Fraction, Strict, Text
from simtrain.strict_yaml import FieldError
from simtrain.units import Bytes, NonNegativeSeconds

Algorithm = Literal["ring", "tree", "hierarchical", "switch"]
Choice = Literal["auto", "ring", "tree", "hierarchical", "switch"]
Kind = Literal["all_reduce", "all_gather", "reduce_scatter"]
_ALL_REDUCE_ONLY = ("tree", "switch")


class Protocol(Strict):
    """How an algorithm moves its messages across nodes, and what its steps take.

    A collective takes `base_latency` once, `node_step` for each step between GPUs of a node and
    `network_step` (by default `inter_node.step_latency`) for each step between nodes. It reaches
    `efficiency` of the bandwidth that the group has.
    """

    name: Text
    base_latency: NonNegativeSeconds
    node_step: NonNegativeSeconds
    network_step: NonNegativeSeconds | None = None
    efficiency: Fraction


Protocols = Entry[Annotated[list[Protocol], Field(min_length=1)]]


class SwitchReduction(Strict):
    """All-reduces that the NVLink switch adds up (NVLink SHARP, NCCL's NVLS and NVLSTree).

    `latency` is that of a node, once. `efficiency` is the fraction of a GPU's NVLink that they
    reach in nodes of more GPUs than any measured all-reduce has; smaller nodes need none, for what
    was measured is what the library chose.
    """

    latency: Entry[NonNegativeSeconds]
    efficiency: Entry[Fraction] | None = None


class Rule(Strict):
    """Collectives of a `kind`, with arrays of at most `up_to`, take an algorithm."""

    kind: Kind
    up_to: Bytes | None = None
    algorithm: Choice

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.algorithm in _ALL_REDUCE_ONLY and self.kind != "all_reduce":
            raise FieldError(
                ("algorithm",),
                f"only an all_reduce can take {self.algorithm}, and the rule is for {self.kind}",
                "write ring, hierarchical or auto, or kind: all_reduce",
            )
        return self


# A word or a list of rules; told apart first, so that a wrong value has one error.
_WordOrRules = Annotated[
    Annotated[Choice, Tag("word")]
    | Annotated[Annotated[list[Rule], Field(min_length=1)], Tag("rules")],
    Discriminator(lambda value: "rules" if isinstance(value, list) else "word"),
]


class Collectives(Strict):
    """The algorithms that collectives across nodes may take, and which of them they take.

    An algorithm without an entry is not available, but for `ring`, which without one takes
    `inter_node.step_latency` at every step. `algorithm` is one for all collectives that can take it
    (the others take a ring, as in NCCL), or rules of which the first that fits holds, or auto: the
    fastest. Without it, and for collectives that no rule fits, it is auto.
    """

    algorithm: Entry[_WordOrRules] | None = None
    ring: Protocols | None = None
    tree: Protocols | None = None
    hierarchical: Protocols | None = None
    switch: SwitchReduction | None = None

    def choice(self, kind: str, array_bytes: float) -> Choice:
        """The algorithm of a collective, or auto."""
        if self.algorithm is None:
            return "auto"
        if isinstance(self.algorithm.value, str):
            return self.algorithm.value
        fitting = (
            rule.algorithm
            for rule in self.algorithm.value
            if rule.kind == kind and (rule.up_to is None or array_bytes <= rule.up_to)
        )
        return next(fitting, "auto")

    @model_validator(mode="after")
    def _available(self) -> Self:
        """Whatever is chosen has an entry, and each rule is reached."""
        if not self.model_fields_set:
            raise FieldError(
                (), "names no algorithm", "add an entry such as collectives.ring, or leave it out"
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
                    f"an earlier rule for {rule.kind} takes all arrays of this one",
                    "write rules from the smallest up_to to the largest, the one without it last",
                )
            reached[rule.kind] = up_to
        return self

    def _check_available(self, choice: Choice, path: tuple[str | int, ...]) -> None:
        if choice in ("auto", "ring") or getattr(self, choice) is not None:
            return
        raise FieldError(
            path,
            f"{choice} has no entry collectives.{choice}, from which its time would follow",
            f"add collectives.{choice}, or write auto or ring",
        )
