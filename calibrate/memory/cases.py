"""The layers and small GPTs whose memory is measured and simulated."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from calibrate.torch_model.models import gpt, llama
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
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
        return _of_gpt(plan, profile) if self.whole else _of_layers(plan)


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
    layers = [
        case(gpt(4, hidden, heads, seq_length), recompute, micro=micro, whole=False)
        for (hidden, heads, seq_length, micro), recompute in product(
            [(1024, 16, 1024, 8), (4096, 32, 2048, 1), (6144, 64, 2048, 1)], _RECOMPUTES
        )
    ]
    models = [
        case(gpt(num_layers, hidden, heads, 1024), recompute, micro=4, whole=True)
        for (num_layers, hidden, heads), recompute in product(
            [(12, 768, 12), (6, 2048, 16)], _RECOMPUTES
        )
    ]
    today = [
        case(
            llama(num_layers, hidden, heads, 1024, groups=8, ffn=ffn, experts=experts),
            recompute,
            micro=micro,
            whole=whole,
            backend="fused",
        )
        for (num_layers, hidden, heads, ffn, experts, micro, whole), recompute in product(
            [
                (4, 1024, 16, 2816, 0, 8, False),
                (2, 4096, 32, 14336, 0, 1, False),
                (12, 768, 24, 2048, 0, 4, True),
                (2, 2048, 16, 5632, 8, 4, False),
            ],
            ["none", "full"],
        )
    ]
    return layers + models + today


_RECOMPUTES: list[Any] = [
    "none",
    "selective",
    "full",
    {"strategy": "full", "num_layers": 2},
    {"strategy": "full", "method": "block", "num_layers": 2},
]


def _of_gpt(plan: Plan, profile: HardwareProfile) -> HeldBytes:
    (stage,) = memory_report(plan, profile).stages
    first_action = plan.schedule.ranks[0][0]
    kept = pass_memory(plan.pass_of(first_action)).saved_bytes
    # Our layer in torch has no use for Megatron-LM's global memory buffer, nor has fused attention.
    tensors = stage.peak_bytes - stage.allocator_bytes - stage.buffers_bytes.get(GLOBAL, 0)
    return HeldBytes(stage.states.total_bytes, kept, tensors)


def _of_layers(plan: Plan) -> HeldBytes:
    num_layers = plan.scenario.model.num_layers
    forward, backward = (pass_memory(plan.layers_pass(num_layers, kind)) for kind in ("F", "B"))
    (parameters,) = plan.stage_parameters
    states = model_states(plan.step_options, parameters.layers).total_bytes
    most = forward.saved_bytes + max(forward.extra_bytes, backward.extra_bytes)
    return HeldBytes(states, forward.saved_bytes, states + most)
