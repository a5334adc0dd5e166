"""Section `collectives` of a hardware profile: algorithms of collectives across nodes."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from simtrain.base.entry import Entry, Fraction, Strict, Text
from simtrain.base.strict_yaml import FieldError
from simtrain.units import Bytes, NonNegativeSeconds

Choice = Literal["auto", "ring", "tree", "hierarchical", "switch"]
Kind = Literal["all_reduce", "all_gather", "reduce_scatter"]
_ALL_REDUCE_ONLY = ("tree", "switch")


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


Protocols = Entry[Annotated[list[Protocol], Field(min_length=1)]]


class SwitchReduction(Strict):
    """All-reduces performed in the NVLink switch (NVLink SHARP, NCCL's NVLS and NVLSTree).

    `latency` is the latency inside a node. `efficiency` is the reached fraction of a GPU's NVLink
    in nodes with more GPUs than any measured all-reduce. Smaller nodes do not need it: the measured
    curve already includes the algorithm that NCCL chose.
    """

    latency: Entry[NonNegativeSeconds]
    efficiency: Entry[Fraction] | None = None


class Rule(Strict):
    """Collectives of a `kind` with arrays of at most `up_to` use `algorithm`."""

    kind: Kind
    up_to: Bytes | None = None
    algorithm: Choice

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.algorithm in _ALL_REDUCE_ONLY and self.kind != "all_reduce":
            raise FieldError(
                ("algorithm",),
                f"only an all_reduce can use {self.algorithm}; this rule is for {self.kind}",
                "write ring, hierarchical or auto, or kind: all_reduce",
            )
        return self


# A word or a list of rules. The discriminator picks one first, so a wrong value gives one error.
_WordOrRules = Annotated[
    Annotated[Choice, Tag("word")]
    | Annotated[Annotated[list[Rule], Field(min_length=1)], Tag("rules")],
    Discriminator(lambda value: "rules" if isinstance(value, list) else "word"),
]


class Collectives(Strict):
    """The algorithms available to collectives across nodes, and how one is chosen.

    An algorithm without an entry is not available, except `ring`, which by default takes
    `inter_node.step_latency` at every step. `algorithm` is one of:

    - auto: the fastest; also the default, and used if no rule applies;
    - a name: every collective that supports it uses it, the others use a ring, as in NCCL;
    - a list of rules: the first rule that applies decides.
    """

    algorithm: Entry[_WordOrRules] | None = None
    ring: Protocols | None = None
    tree: Protocols | None = None
    hierarchical: Protocols | None = None
    switch: SwitchReduction | None = None

    def choice(self, kind: str, array_bytes: float) -> Choice:
        """The chosen algorithm for a collective of this kind and size, or auto."""
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
        """Check that each chosen algorithm has an entry and that each rule can apply."""
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
                    f"an earlier rule for {rule.kind} already covers every array of this rule",
                    "order rules by up_to, smallest first, and the rule without up_to last",
                )
            reached[rule.kind] = up_to
        return self

    def _check_available(self, choice: Choice, path: tuple[str | int, ...]) -> None:
        if choice in ("auto", "ring") or getattr(self, choice) is not None:
            return
        raise FieldError(
            path,
            f"{choice} needs the entry collectives.{choice}, which is missing",
            f"add collectives.{choice}, or write auto or ring",
        )


ALGORITHMS_WITH_STEPS = tuple(
    name
    for name, field in Collectives.model_fields.items()
    if Protocols in get_args(field.annotation)
)
"""Names of the algorithms whose protocols have latencies per step."""
