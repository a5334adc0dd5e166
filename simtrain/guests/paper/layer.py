"""One layer of the paper's models: Table 2, Figures 7 and 8, and the time that recompute takes.

Tensors that a layer saves are terms in s, b, h, a and t (Section 4), derived from recorded layers,
not typed. A layer is recorded once, and again with each variable doubled. If the bytes of a tensor
change by a factor of 2^n, the power of the variable is n.

The paper's formulas are an independent check of the values computed from ops and schedules: only
reproductions use them. Names are those of Table 1; bytes are Fractions, so comparisons are exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Self

from simtrain.base.values import dataclass
from simtrain.durations.collectives import total_wire_bytes
from simtrain.durations.model import DurationModel
from simtrain.guests.paper.entries import Progress, Reproduction, published, reported, reproduction
from simtrain.guests.paper.models import (
    BASELINE,
    MODELS,
    PRESENT,
    STRATEGIES,
    paper_plan,
    paper_scenario,
)
from simtrain.hardware.load import profile_of
from simtrain.iteration.memory.working import pass_memory, replay
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_layer
from simtrain.workload.chunk import Chunk
from simtrain.workload.model_ends import GetBatch
from simtrain.workload.ops import Op, Tensor, total_flops
from simtrain.workload.passes import Pass, record_pass


@dataclass(frozen=True, slots=True)
class Formulas:
    """The variables of Table 1 for a scenario, and the paper's formulas."""

    a: int
    b: int
    h: int
    layers: int
    p: int
    s: int
    t: int
    v: int
    m: int
    sequence: bool
    recompute: str

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        model, split = scenario.model, scenario.parallelism
        return cls(
            a=model.num_attention_heads,
            b=scenario.batch.micro,
            h=model.hidden_size,
            layers=model.num_layers,
            p=split.pipeline,
            s=model.seq_length,
            t=split.tensor,
            v=model.vocab_size,
            m=split.interleave,
            sequence=split.sequence_parallel,
            recompute=scenario.recompute.strategy,
        )

    @property
    def sbh(self) -> int:
        return self.s * self.b * self.h

    @property
    def attention_factor(self) -> Fraction:
        """5as/h: activations of the attention core, in units of sbh bytes."""
        return Fraction(5 * self.a * self.s, self.h)

    @property
    def layer_bytes(self) -> Fraction:
        """Activation memory of a layer: Table 2, which includes Equations 1, 2 and 4."""
        if self.recompute == "full":
            return Fraction(2 * self.sbh)
        linear = Fraction(34, self.t) if self.sequence else 10 + Fraction(24, self.t)
        attention = self.attention_factor / self.t if self.recompute == "none" else 0
        return self.sbh * (linear + attention)

    @property
    def layer_flops(self) -> Fraction:
        """FLOPs of a layer, forward and backward: Table 2."""
        factor = 96 if self.recompute == "full" else 72
        attention = Fraction(2, 9) if self.recompute == "selective" else Fraction(1, 6)
        attention *= Fraction(self.s, self.h)
        return Fraction(factor * self.sbh * self.h, self.t) * (1 + attention)

    @property
    def layer_communicated_bytes(self) -> Fraction:
        """Bytes that each rank sends per layer, forward and backward: Table 2."""
        factor = 24 if self.recompute == "full" else 16
        return factor * Fraction(self.t - 1, self.t) * self.sbh

    @property
    def first_stage_bytes(self) -> Fraction:
        """Activations of the first stage's layers: Equations 5 and 6, times 1 + (p-1)/(pm)."""
        interleaving = 1 + Fraction(self.p - 1, self.p * self.m) if self.m > 1 else 1
        return self.layer_bytes * self.layers * interleaving

    @property
    def embedding_dropout_bytes(self) -> Fraction:
        """Masks of the embedding's dropout on the first stage (Section 4.3): sbhp/t."""
        return Fraction(self.sbh * self.p, self.t if self.sequence else 1)

    @property
    def ends_bytes(self) -> Fraction:
        """Activations that Section 4.3 adds to the first stage under sequence parallelism."""
        head = 4 * self.sbh * (1 + Fraction(self.v, self.h)) / self.t if self.p == 1 else 0
        return self.embedding_dropout_bytes + head


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
    _, live = replay(record_pass(forward), 0, {}, counts_left=True)
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


ALONE = "no parallelism"


def table2(progress: Progress | None = None) -> Reproduction:
    """Reproduce Table 2 for the models of Table 3, and Section 4.3's embedding and output layer."""
    activations, flops, sent = {}, {}, {}
    for model in MODELS:
        for strategy, scenario in _configured(model):
            labels, formulas = (model, strategy), Formulas.of(scenario)
            forward, backward = layer_ops(scenario)
            ops = [*forward, *backward]
            # The table omits the all-gathers that sequence parallelism repeats in the backward.
            sent_bytes = total_wire_bytes(ops, include_extra=False)
            activations[labels] = float(formulas.layer_bytes), saved_bytes(scenario)
            flops[labels] = float(formulas.layer_flops), total_flops(ops)
            sent[labels] = float(formulas.layer_communicated_bytes), sent_bytes
    scenario = paper_scenario("22B", "sequence")
    formulas = Formulas.of(scenario)
    layers, embedding, both = _kept(paper_plan(scenario))
    ends = {
        "embedding dropout": (float(formulas.embedding_dropout_bytes), embedding - layers),
        "embedding, final layer norm, output layer and logits": (
            float(formulas.ends_bytes),
            both - layers,
        ),
    }
    total = float(formulas.first_stage_bytes)
    shares = {name: (paper / total, ours / layers) for name, (paper, ours) in ends.items()}
    return reproduction(
        "table2",
        activations=activations,
        flops=flops,
        communication=sent,
        ends=ends,
        ends_share=shares,
    )


def saved_bytes(scenario: Scenario, num_layers: int = 1) -> int:
    """Return the bytes that layers save for the backward pass, from their ops."""
    return pass_memory(paper_plan(scenario).layers_pass(num_layers, "F")).remaining_bytes


def _configured(model: str) -> Iterator[tuple[str, Scenario]]:
    yield ALONE, paper_scenario(model, BASELINE, "parallelism.tensor=1")
    for strategy in STRATEGIES:
        yield strategy, paper_scenario(model, strategy)


def layer_ops(scenario: Scenario) -> tuple[list[Op], list[Op]]:
    """Return the ops of a layer's forward pass, and of its backward pass."""
    plan = paper_plan(scenario)
    forward, backward = ([*record_pass(plan.layers_pass(1, kind)).ops] for kind in ("F", "B"))
    return forward, backward


def _kept(plan: Plan) -> tuple[int, int, int]:
    """Return the bytes saved by the layers; plus the embedding; plus embedding and head."""
    (chunk,) = plan.chunks
    blocks = [(block, times) for block, times in chunk.runs if not isinstance(block, GetBatch)]
    embedding, layers, head = blocks
    chunks = (layers,), (embedding, layers), (embedding, layers, head)
    kept = [
        pass_memory(Pass(Chunk(runs), "F", plan.scenario.recompute, plan.options)).remaining_bytes
        for runs in chunks
    ]
    return kept[0], kept[1], kept[2]


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Time and FLOPs of one layer with a strategy.

    Args:
        forward_s: time of the forward pass.
        backward_s: time of the backward pass without recompute.
        recompute_s: time that recompute adds to the backward pass, exposed collectives included.
        forward_flops: FLOPs of the forward pass.
        recompute_flops: FLOPs that run again.
        total_flops: all FLOPs, with those that run again.
        num_ops: number of ops in both passes.
        num_extrapolated: number of these outside the range that the profile was fitted on.
    """

    forward_s: float
    backward_s: float
    recompute_s: float
    forward_flops: int
    recompute_flops: int
    total_flops: int
    num_ops: int
    num_extrapolated: int

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s + self.recompute_s


Times = dict[tuple[str, bool, str, int], LayerTime]
"""By model, sequence parallelism, recompute strategy and sequence length."""


def recompute_tax(
    models: Sequence[str] = MODELS,
    lengths: Sequence[int] = LENGTHS,
    on_progress: Progress | None = None,
) -> Times:
    """Simulate one layer of each model, under each strategy and for each sequence length."""
    return {
        (model, sequence_parallel, recompute, length): layer
        for model in reported(models, on_progress, lambda name: f"a layer of {name}")
        for length in lengths
        for sequence_parallel in (False, True)
        for recompute, layer in layer_times(
            model, length, sequence_parallel=sequence_parallel
        ).items()
    }


def layer_times(model: str, length: int = 2048, *, sequence_parallel: bool) -> dict[str, LayerTime]:
    """Simulate one layer with each recompute strategy."""
    overrides = (
        f"parallelism.sequence_parallel={str(sequence_parallel).lower()}",
        f"model.seq_length={length}",
    )
    scenarios = {name: paper_scenario(model, name, *overrides) for name in RECOMPUTES}
    saving, profile = scenarios["none"], profile_of(scenarios["none"])
    durations, times = DurationModel(profile), {}
    _, saving_backward = simulate_layer(saving, profile)
    model_flops = sum(map(total_flops, layer_ops(saving)))
    for recompute, scenario in scenarios.items():
        forward, backward = simulate_layer(scenario, profile)
        forward_ops, backward_ops = layer_ops(scenario)
        ops = [*forward_ops, *backward_ops]
        times[recompute] = LayerTime(
            forward_s=forward.duration_s,
            backward_s=saving_backward.duration_s,
            recompute_s=backward.duration_s - saving_backward.duration_s,
            forward_flops=total_flops(forward_ops),
            recompute_flops=total_flops(ops) - model_flops,
            total_flops=total_flops(ops),
            num_ops=len(ops),
            num_extrapolated=sum(durations.is_extrapolated(op.work) for op in ops),
        )
    return times


TECHNIQUES = ("sequence", "selective", PRESENT, "full")


def fig7(progress: Progress | None = None) -> Reproduction:
    """Reproduce the bars of Figure 7 and the numbers in the paper's text about them."""
    shares = {}
    for model in MODELS:
        baseline = paper_scenario(model, BASELINE)
        for technique in TECHNIQUES:
            scenario = paper_scenario(model, technique)
            paper = Formulas.of(scenario).layer_bytes / Formulas.of(baseline).layer_bytes
            ours = saved_bytes(scenario) / saved_bytes(baseline)
            shares[model, technique] = float(paper), ours
    means = {}
    for technique, words in published("fig7")["sections"]["means"]["paper"].items():
        ours = math.fsum(shares[model, technique][1] for model in MODELS) / len(MODELS)
        means[technique, *words] = ours
    core, savings = {}, {}
    for model, name in (("175B", "GPT-3"), ("530B", "MT-NLG")):
        everything, selective = (
            saved_bytes(paper_scenario(model, strategy)) for strategy in ("sequence", PRESENT)
        )
        formulas = Formulas.of(paper_scenario(model, "sequence"))
        core[f"5as/h of {name}"] = (everything - selective) / (formulas.sbh / formulas.t)
        savings[name] = 1 - selective / everything
    core["sequence length at which it exceeds the rest, GPT-3's width"] = _crossover()
    return reproduction("fig7", shares=shares, means=means, attention_core=core, savings=savings)


def _crossover() -> int:
    """Return the shortest sequence at which GPT-3's attention core saves more than the rest."""
    terms = layer_terms(sequence_parallel=False, recompute="none")
    sizes = sizes_of(paper_scenario("175B", BASELINE, "parallelism.tensor=1"))
    return math.floor(crossing_length(terms, sizes)) + 1


def fig8(progress: Progress | None = None) -> Reproduction:
    """Simulate one layer per model: baseline, full recompute, and present work."""
    times, overheads = {}, {}
    for model in reported(MODELS, progress):
        whole, sharded = (
            layer_times(model, sequence_parallel=is_sharded) for is_sharded in (False, True)
        )
        bars = {BASELINE: whole["none"], "full": whole["full"], PRESENT: sharded["selective"]}
        for strategy, layer in bars.items():
            times[model, strategy, "forward"] = layer.forward_s
            times[model, strategy, "backward"] = layer.backward_s
            times[model, strategy, "recompute"] = layer.recompute_s
            if strategy != BASELINE:
                overheads[model, strategy] = layer.total_s / bars[BASELINE].total_s - 1
    return reproduction("fig8", times=times, overheads=overheads)
