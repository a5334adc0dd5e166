"""The layers and small GPTs whose memory is measured and simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.torch_model.models import gpt, llama
from simtrain.hardware.load import profile_of
from simtrain.memory.buffers import GLOBAL
from simtrain.memory.report import memory_report
from simtrain.memory.states import model_states
from simtrain.memory.working import pass_memory
from simtrain.plan import Plan
from simtrain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes of tensors on one rank.

    `states` are held between iterations, `kept` by a forward pass in addition; `peak` includes
    both.
    """

    states: int
    kept: int
    peak: int

    @property
    def passing(self) -> int:
        """The peak less the states."""
        return self.peak - self.states


@dataclass(frozen=True, slots=True)
class Case:
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
            tensors = stage.peak_bytes - stage.allocator_bytes - stage.buffers_bytes.get(GLOBAL, 0)
            return HeldBytes(stage.states.total_bytes, kept, tensors)
        num_layers = self.scenario.model.num_layers
        forward, backward = (pass_memory(plan.layers_pass(num_layers, kind)) for kind in ("F", "B"))
        (parameters,) = plan.stage_parameters
        states = model_states(plan.step_options, parameters.layers).total_bytes
        most = forward.saved_bytes + max(forward.extra_bytes, backward.extra_bytes)
        return HeldBytes(states, forward.saved_bytes, states + most)


def case(
    model: dict[str, Any], recompute: Any, *, micro: int, whole: bool, backend: str = "unfused"
) -> Case:
    """The case of a model on one rank."""
    batch = {"micro": micro, "global": 2 * micro}
    data = {"model": model, "batch": batch, "recompute": recompute, "attention_backend": backend}
    return Case(Scenario.model_validate(data), whole)


def all_cases() -> list[Case]:
    """Layers of models of 0.35, 6.7 and 22 billion parameters, and GPTs of 0.12 and 0.4 billion.

    Then layers of two Llama models, a small such model, and layers with eight experts, all with
    fused attention.
    """
    by_twos = {"strategy": "full", "num_layers": 2}
    recomputes = ["none", "selective", "full", by_twos, by_twos | {"method": "block"}]
    paper = [
        (gpt(4, 1024, 16, 1024), 8, False),
        (gpt(4, 4096, 32, 2048), 1, False),
        (gpt(4, 6144, 64, 2048), 1, False),
        (gpt(12, 768, 12, 1024), 4, True),
        (gpt(6, 2048, 16, 1024), 4, True),
    ]
    today = [
        (llama(4, 1024, 16, 1024, groups=8, ffn=2816), 8, False),
        (llama(2, 4096, 32, 1024, groups=8, ffn=14336), 1, False),
        (llama(12, 768, 24, 1024, groups=8, ffn=2048), 4, True),
        (llama(2, 2048, 16, 1024, groups=8, ffn=5632, experts=8), 4, False),
    ]
    return [
        case(model, recompute, micro=micro, whole=whole, backend=backend)
        for models, policies, backend in (
            (paper, recomputes, "unfused"),
            (today, ["none", "full"], "fused"),
        )
        for model, micro, whole in models
        for recompute in policies
    ]
