"""Tensors that a layer saves, as terms in s, b, h, a and t (paper, Section 4).

The terms are derived from recorded layers, not typed. A layer is recorded once, and again with each
variable doubled. If a tensor's bytes change by a factor of 2^n, the power of the variable is n.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from simtrain.iteration.memory.working import replay
from simtrain.paper.models import paper_plan, paper_scenario
from simtrain.scenario import Scenario
from simtrain.workload.ops import Tensor
from simtrain.workload.record import record_pass

VARIABLES = {
    "s": "model.seq_length",
    "b": "batch.micro",
    "h": "model.hidden_size",
    "a": "model.num_attention_heads",
    "t": "parallelism.tensor",
}
"""Fields of a scenario by their name in the paper (Table 1)."""
RECOMPUTES = ("none", "selective", "full")
_BASE = {"s": 1024, "b": 2, "h": 3072, "a": 32, "t": 4}


@dataclass(frozen=True, slots=True)
class Term:
    """Bytes of one saved tensor: `coefficient` times each variable to its power.

    Args:
        tensor: name of the tensor.
        coefficient: bytes of the tensor if all variables are 1.
        powers: power of each variable in `VARIABLES`; negative for a division.
    """

    tensor: str
    coefficient: int
    powers: Mapping[str, int]

    def num_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the tensor, for sizes that the framework allows (t divides a)."""
        factors = (Fraction(sizes[name]) ** power for name, power in self.powers.items())
        return int(self.coefficient * math.prod(factors))


@functools.cache
def layer_terms(*, sequence_parallel: bool, recompute: str) -> tuple[Term, ...]:
    """Return the terms of the tensors that a layer of the paper's models saves, in their order.

    Args:
        sequence_parallel: whether sequence parallelism is on (then t is at least 2).
        recompute: a strategy in `RECOMPUTES`.
    """
    at_base = _saved(sequence_parallel, recompute, _BASE)
    doubled = {
        name: _saved(sequence_parallel, recompute, _BASE | {name: 2 * size})
        for name, size in _BASE.items()
    }
    return tuple(
        _term(name, size, {variable: sizes[name] for variable, sizes in doubled.items()})
        for name, size in at_base.items()
    )


def _term(tensor: str, base_bytes: int, doubled_bytes: Mapping[str, int]) -> Term:
    powers = {
        variable: round(math.log2(num_bytes / base_bytes))
        for variable, num_bytes in doubled_bytes.items()
    }
    unit = math.prod(float(_BASE[name]) ** power for name, power in powers.items())
    return Term(tensor, round(base_bytes / unit), powers)


def sizes_of(scenario: Scenario) -> dict[str, int]:
    """Return the values of the variables in a scenario."""
    model, batch, split = scenario.model, scenario.batch, scenario.parallelism
    sizes = model.seq_length, batch.micro, model.hidden_size, model.num_attention_heads
    return dict(zip(VARIABLES, (*sizes, split.tensor), strict=True))


def sized_scenario(
    sizes: Mapping[str, int], *, sequence_parallel: bool, recompute: str
) -> Scenario:
    """Load a scenario with one layer of the paper's 22B model, with other sizes.

    Raises:
        InputError: the sizes break a rule of the framework.
    """
    fields = {field: sizes[name] for name, field in VARIABLES.items()}
    fields |= {"batch.global": sizes["b"], "model.num_layers": 1}
    overrides = [f"{field}={size}" for field, size in fields.items()]
    overrides += [f"parallelism.sequence_parallel={str(sequence_parallel).lower()}"]
    return paper_scenario("22B", recompute, *overrides)


def saved_tensors(scenario: Scenario) -> tuple[Tensor, ...]:
    """Return the tensors that a layer saves for its backward pass, in the order of their creation.

    They are the tensors that exist after a replay of its forward pass.
    """
    forward = paper_plan(scenario).layers_pass(1, "F")
    _, live = replay(record_pass(forward), {}, counts_left=True)
    tensors = (tensor for block in live.values() for tensor in block)
    return tuple(sorted(tensors, key=lambda tensor: tensor.number))


def _saved(sequence_parallel: bool, recompute: str, sizes: Mapping[str, int]) -> dict[str, int]:
    scenario = sized_scenario(sizes, sequence_parallel=sequence_parallel, recompute=recompute)
    return {tensor.name: tensor.num_bytes for tensor in saved_tensors(scenario)}


def crossing_length(terms: tuple[Term, ...], sizes: Mapping[str, int]) -> Fraction:
    """Sequence length at which the terms in s² equal the terms in s (Section 5).

    Args:
        terms: terms of a layer without recompute.
        sizes: the variables; s has no effect.
    """
    shortest = dict(sizes) | {"s": sizes["t"]}
    degrees = {1: 0, 2: 0}
    for term in terms:
        degrees[term.powers["s"]] += term.num_bytes(shortest)
    return Fraction(degrees[1] * shortest["s"], degrees[2])
