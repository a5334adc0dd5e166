"""Runs layers and small GPTs in torch and compares their memory with simtrain's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calibrate.tables import PERCENT, comparison_table
from calibrate.torch_model.gpt import LayerStack, Stage
from calibrate.torch_model.models import Data, LayerSize, ModelSize, read_sizes
from calibrate.torch_model.shape import LayerShape
from calibrate.torch_model.training import MixedPrecisionAdam
from simtrain.base.accuracy import Comparison, ErrorStatistics, Pair
from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.load import profile_of
from simtrain.iteration.memory.buffers import GLOBAL, WORKSPACES
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.memory.states import model_states
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.views.kinds import Kind
from simtrain.views.view import Column, Verdict, View


class CudaAllocator(nullcontext[None]):
    """The caching allocator of the current CUDA device; it rounds each tensor up to 512 bytes.

    As a context it does nothing: it always counts.
    """

    def reset_peak(self) -> None:
        """Start a new peak with an empty cache."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    @property
    def held_bytes(self) -> int:
        """Bytes of the tensors that exist."""
        return torch.cuda.memory_allocated()

    @property
    def peak_bytes(self) -> int:
        """The most bytes of tensors since the last `reset_peak`."""
        return torch.cuda.max_memory_allocated()

    @property
    def reserved_bytes(self) -> int:
        """The most bytes that the allocator took from the device."""
        return torch.cuda.max_memory_reserved()


class LiveTensors(TorchDispatchMode):
    """Counts the storages of all tensors that ops return within it, while they exist.

    Works on any device, and on torch's meta device without computing anything. Memory that a kernel
    takes and gives back before it returns is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held_bytes = 0
        self.peak_bytes = 0
        self.reserved_bytes = None
        self._known: set[int] = set()

    def reset_peak(self) -> None:
        """Start a new peak: the bytes that are held now."""
        self.peak_bytes = self.held_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        address, num_bytes = storage._cdata, storage.nbytes()
        if address not in self._known:
            self._known.add(address)
            self.held_bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
            weakref.finalize(storage, self._drop, address, num_bytes)

    def _drop(self, address: int, num_bytes: int) -> None:
        self._known.discard(address)
        self.held_bytes -= num_bytes


Memory = CudaAllocator | LiveTensors


def compare(cases: Sequence[MemoryCase], device: str) -> MemoryComparison:
    """Run the cases on "cuda", or without computing anything on "meta", one after another."""
    counted = "live tensors counted, nothing computed"
    if device == "cuda":
        counted = f"torch.cuda.max_memory_allocated on {torch.cuda.get_device_name()}"
        leave_workspaces()
    rows = []
    for each in cases:
        measured, reserved_bytes = measure(each, device)
        rows.append(
            MemoryRow(each.name, each.recompute, measured, each.simulated(), reserved_bytes)
        )
    return MemoryComparison(counted, rows)


def leave_workspaces() -> None:
    """Allocate the workspaces of cuBLAS, which the first run on CUDA keeps, before any case."""
    measure(_TINY, "cuda")


def measure(what: MemoryCase, device: str) -> tuple[HeldBytes, int | None]:
    """Measure what a case holds in its second iteration, and what the allocator has reserved."""
    memory: Memory = CudaAllocator() if device == "cuda" else LiveTensors()
    gc.collect()
    memory.reset_peak()
    with memory:
        before = memory.held_bytes
        iteration = _training(what, device, memory)
        iteration()
        states = memory.held_bytes
        memory.reset_peak()
        held_bytes = iteration()
    measured = HeldBytes(states - before, held_bytes - states, memory.peak_bytes - before)
    return measured, memory.reserved_bytes


def _training(what: MemoryCase, device: str, memory: Memory) -> Callable[[], int]:
    """Build an iteration, which returns the bytes held after its last forward pass."""
    model = what.scenario.model
    sizes = LayerShape.of(what.scenario), model.num_layers, what.scenario.recompute
    with torch.device(device):
        module = Stage(*sizes, tied=model.tied_embeddings) if what.whole else LayerStack(*sizes)
    module.bfloat16()
    optimizer = MixedPrecisionAdam(module.parameters(), learning_rate=1e-4)
    tokens = model.seq_length, what.scenario.batch.micro

    def microbatch() -> int:
        """Run a microbatch; return the bytes that it holds before its backward pass."""
        if what.whole:  # tokens and labels
            inputs = [torch.randint(model.vocab_size, tokens, device=device) for _ in range(2)]
            loss = module(*inputs)
        else:
            size = *tokens, model.hidden_size
            inputs = [torch.randn(size, dtype=torch.bfloat16, device=device, requires_grad=True)]
            loss = _SentOn.apply(module(*inputs))
        del inputs
        loss = loss / what.scenario.num_microbatches
        held_bytes = memory.held_bytes
        loss.backward()
        return held_bytes

    def iteration() -> int:
        held_bytes = [microbatch() for _ in range(what.scenario.num_microbatches)]
        optimizer.step()
        return held_bytes[-1]

    return iteration


class _SentOn(torch.autograd.Function):
    """The next pipeline stage: takes an output, returns a gradient, saves nothing (Appendix B)."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        """Return a zero, and save only the shape of the output."""
        ctx.shape, ctx.kind = output.shape, {"dtype": output.dtype, "device": output.device}
        return output.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> Tensor:
        """Return a gradient of ones."""
        return torch.ones(ctx.shape, **ctx.kind)


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
        """The peak less the states."""
        return self.peak - self.states


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """A scenario of one rank with two microbatches: a `whole` GPT, or its layers alone."""

    scenario: Scenario
    whole: bool

    @property
    def name(self) -> str:
        """The model and a microbatch, in words."""
        model, micro = self.scenario.model, self.scenario.batch.micro
        kind = "GPT of" if self.whole else "layers,"
        if model.normalization == "rms_norm":
            kind = "Llama of" if self.whole else "Llama layers,"
        if model.experts is not None:
            kind = f"{model.experts.num} experts, {kind}"
        return f"{kind} {model.num_layers} x {model.hidden_size}, {micro} x {model.seq_length}"

    @property
    def recompute(self) -> str:
        """The recompute policy, in words."""
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
            kept = pass_memory(plan.pass_of(plan.schedule.ranks[0][0])).saved_bytes
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


_TINY = case(LayerSize(64, 1, 64, 1).model(), "none", micro=1, whole=True)


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
        """Relative error of the peak: simulated / measured - 1."""
        return self.simulated.peak / self.measured.peak - 1

    @property
    def passing_error(self) -> float:
        """Relative error of the bytes that the peak holds besides model states."""
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
        """The larger error of each case."""
        return [max(row.peak_error, row.passing_error, key=abs) for row in self.rows]

    def view(self) -> View:
        """A row for each case, and the verdict; "passing" is the error of the peak less states."""
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
        title, peaks = f"Memory: {self.counted}", Comparison("peak", "bytes", pairs)
        table = comparison_table(
            "cases", title, peaks, *labels, predicted="simulated", further=further
        )
        errors = f"mean |error| {self.mean_abs_error:.2%}, largest {self.max_abs_error:.2%}"
        words = f"{len(rows)} cases, {errors} (at most {self.max_threshold:.1%})"
        return View([table, Verdict(self.ok, words)])
