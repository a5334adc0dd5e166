"""The layers and small GPTs whose memory is measured and simulated, and the comparison of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import TypeAdapter

from calibrate.tables import PERCENT, comparison_table
from calibrate.torch_model.models import Data, ModelSize, read_sizes
from simtrain.base.accuracy import ErrorStatistics, ErrorTable, Pair
from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.load import profile_of
from simtrain.iteration.memory.buffers import GLOBAL, WORKSPACES, model_states
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.views.kinds import Kind
from simtrain.views.view import Column, View, verdict

THRESHOLD = 0.03
"""Largest |error| of a peak, and of the part of it that comes and goes."""


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes of tensors on one rank.

    Args:
        states: held between iterations.
        kept: held by a forward pass in addition.
        peak: the most, with both.
    """

    states: int
    kept: int
    peak: int

    @property
    def passing(self) -> int:
        return self.peak - self.states


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """A scenario of one rank with two microbatches: a `whole` GPT, or its layers alone."""

    scenario: Scenario
    whole: bool

    @property
    def name(self) -> str:
        model, micro = self.scenario.model, self.scenario.batch.micro
        kind = "GPT of" if self.whole else "layers,"
        if model.normalization == "rms_norm":
            kind = "Llama of" if self.whole else "Llama layers,"
        if model.experts is not None:
            kind = f"{model.experts.num} experts, {kind}"
        return f"{kind} {model.num_layers} x {model.hidden_size}, {micro} x {model.seq_length}"

    @property
    def recompute(self) -> str:
        policy = self.scenario.recompute
        if policy.method == "block":
            return f"{policy.strategy}, first {policy.num_layers}"
        return policy.strategy + (f" by {policy.num_layers}" if policy.num_layers > 1 else "")

    def simulated(self) -> HeldBytes:
        """Simulate it, without the reserve of the allocator and Megatron-LM's global buffer."""
        profile = profile_of(self.scenario)
        plan = Plan.of(self.scenario, profile.cluster.domains)
        if self.whole:
            (stage,) = memory_report(plan, profile).stages
            kept = pass_memory(plan.chunk_pass(plan.chunks[0], "F", saves_all=False)).saved_bytes
            # Our layer has no use for Megatron-LM's global memory buffer, nor has fused attention.
            # Workspaces exist before the measurement begins.
            other_bytes = sum(stage.buffers_bytes.get(name, 0) for name in (GLOBAL, WORKSPACES))
            tensors = stage.peak_bytes - stage.allocator_bytes - other_bytes
            return HeldBytes(stage.states.total_bytes, kept, tensors)
        num_layers = self.scenario.model.num_layers
        forward, backward = (pass_memory(plan.layers_pass(num_layers, kind)) for kind in ("F", "B"))
        (parameters,) = plan.stage_parameters
        states = model_states(plan.step_options, parameters.layers).total_bytes
        most = forward.saved_bytes + max(forward.extra_bytes, backward.extra_bytes)
        return HeldBytes(states, forward.saved_bytes, states + most)


def case(model: Data, recompute: Any, *, micro: int, whole: bool) -> MemoryCase:
    """The case of a model on one rank; Llama's have fused attention."""
    data = {
        "model": model,
        "batch": {"micro": micro, "global": 2 * micro},
        "recompute": recompute,
        "attention_backend": "fused" if "num_query_groups" in model else "unfused",
    }
    return MemoryCase(Scenario.model_validate(data), whole)


def all_cases() -> list[MemoryCase]:
    """The models of calibrate/sizes.yaml: the paper's under every recompute, Llama's under two."""
    by_twos = {"strategy": "full", "num_layers": 2}
    every = ["none", "selective", "full", by_twos, by_twos | {"method": "block"}]
    models = TypeAdapter(list[ModelSize]).validate_python(read_sizes()["memory"])
    return [
        case(layer.model(each.num_layers), policy, micro=layer.microbatch, whole=each.whole)
        for each in models
        for layer in [each.layer]
        for policy in (("none", "full") if layer.groups else every)
    ]


@dataclass(frozen=True, slots=True)
class MemoryRow(PlainData):
    """A measured and simulated case.

    Args:
        name: the model.
        recompute: its recompute.
        measured, simulated: bytes at three moments.
        reserved_bytes: memory that CUDA's allocator took; None on cpu.
    """

    json_fields: ClassVar = keys(
        """name recompute measured_bytes=measured simulated_bytes=simulated reserved_bytes
        peak_error passing_error"""
    )

    name: str
    recompute: str
    measured: HeldBytes
    simulated: HeldBytes
    reserved_bytes: int | None

    @property
    def peak_error(self) -> float:
        return self.simulated.peak / self.measured.peak - 1

    @property
    def passing_error(self) -> float:
        return self.simulated.passing / self.measured.passing - 1


@dataclass(frozen=True)
class MemoryComparison(ErrorStatistics, PlainData):
    """All cases on a device.

    Args:
        counted: the way of measuring there.
        rows: the cases.
    """

    json_fields: ClassVar = keys(
        "counted cases=rows mean_abs_error max_abs_error threshold=max_threshold ok"
    )

    counted: str
    rows: Sequence[MemoryRow]
    mean_threshold, max_threshold = None, THRESHOLD

    @property
    def errors(self) -> list[float]:
        return [max(row.peak_error, row.passing_error, key=abs) for row in self.rows]

    def view(self) -> View:
        rows, labels = self.rows, ("case", "recompute")
        pairs = [
            Pair((row.name, row.recompute), row.measured.peak, row.simulated.peak) for row in rows
        ]
        passing = Column("passing_error", "passing\n%", PERCENT)
        further: list[tuple[Column, list[float]]] = [(passing, [row.passing_error for row in rows])]
        if any(row.reserved_bytes is not None for row in rows):
            reserved = Column(
                "reserved_bytes",
                "reserved\nGiB",
                Kind(lambda num_bytes: f"{num_bytes / 2**30:.4g}"),
            )
            further.append((reserved, [row.reserved_bytes or 0 for row in rows]))
        title, peaks = f"Memory: {self.counted}", ErrorTable("peak", "bytes", pairs)
        table = comparison_table(
            "cases", title, peaks, *labels, predicted="simulated", further=further
        )
        errors = f"mean |error| {self.mean_abs_error:.2%}, largest {self.max_abs_error:.2%}"
        words = f"{len(rows)} cases, {errors} (at most {self.max_threshold:.1%})"
        return View([table, verdict(self.ok, words)])
