"""The layers and small GPTs whose memory is measured and simulated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from calibrate.torch_model.models import Data, LayerSize
from simtrain.hardware.load import profile_of
from simtrain.memory.buffers import GLOBAL
from simtrain.memory.report import memory_report
from simtrain.memory.states import model_states
from simtrain.memory.working import pass_memory
from simtrain.plan import Plan
from simtrain.scenario import Scenario

_FILE = Path(__file__).parents[1] / "sizes.yaml"


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


@dataclass(frozen=True, slots=True)
class _Model:
    """A model of calibrate/sizes.yaml."""

    num_layers: int
    layer: LayerSize
    whole: bool = False


def case(model: Data, recompute: Any, *, micro: int, whole: bool) -> Case:
    """The case of a model on one rank; Llama's have fused attention."""
    data = {
        "model": model,
        "batch": {"micro": micro, "global": 2 * micro},
        "recompute": recompute,
        "attention_backend": "fused" if "num_query_groups" in model else "unfused",
    }
    return Case(Scenario.model_validate(data), whole)


def all_cases() -> list[Case]:
    """The models of calibrate/sizes.yaml: the paper's under every recompute, Llama's under two."""
    by_twos = {"strategy": "full", "num_layers": 2}
    every = ["none", "selective", "full", by_twos, by_twos | {"method": "block"}]
    models = TypeAdapter(list[_Model]).validate_python(YAML(typ="safe").load(_FILE)["memory"])
    return [
        case(layer.model(each.num_layers), policy, micro=layer.microbatch, whole=each.whole)
        for each in models
        for layer in [each.layer]
        for policy in (("none", "full") if layer.groups else every)
    ]
