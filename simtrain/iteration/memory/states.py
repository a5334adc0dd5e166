"""Model states: parameters, gradients, and the optimizer states of Adam.

Sources: Rajbhandari et al., "ZeRO" (2020), Section 3.1: 2Ψ + 2Ψ + 12Ψ bytes of mixed-precision
Adam, sharded over the replicas from the optimizer states (stage 1) over the gradients (2) to the
parameters (3). Megatron-LM accumulates gradients in fp32: 18 bytes per parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simtrain.units import format_bytes
from simtrain.workload.chunk import Parameters
from simtrain.workload.step_options import StepOptions


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Bytes of model states on a rank, which stay for the whole training.

    With fully_shard and one microbatch, gradients exist from their reduction to the step only.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    def __repr__(self) -> str:
        sizes = {"parameters": self.parameters_bytes, "gradients": self.gradients_bytes}
        sizes |= {"optimizer": self.optimizer_bytes}
        words = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
        return f"<ModelStates: {words}>"

    def with_gradients(self, gradients_bytes: int) -> ModelStates:
        """Return the states with so many bytes of gradients."""
        return replace(self, gradients_bytes=gradients_bytes)

    @property
    def total_bytes(self) -> int:
        """Sum of all three."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def rank_states(options: StepOptions, parameters: Parameters) -> ModelStates:
    """Return the model states of a rank with these parameters; frozen ones have weights only."""
    trained = parameters.trained
    numbers = parameters.total, parameters.experts, parameters.in_fp8
    return model_states(options, *numbers, trained=(trained.total, trained.experts))


def model_states(
    options: StepOptions,
    num_parameters: int,
    num_expert: int = 0,
    num_fp8: int = 0,
    *,
    trained: tuple[int, int] | None = None,
) -> ModelStates:
    """Return the model states of a rank under ZeRO and offload.

    Args:
        options: options of the optimizer step.
        num_parameters: parameters of the rank before ZeRO.
        num_expert: parameters that belong to experts.
        num_fp8: parameters that are weights of fp8 products.
        trained: parameters with gradients and optimizer states, and how many of them belong to
            experts; all parameters by default.
    """
    num_trained, trained_experts = trained or (num_parameters, num_expert)

    def num_held(from_stage: int) -> int:
        return options.held(num_trained, trained_experts, from_stage=from_stage)

    of_experts = num_expert if num_fp8 else 0
    return ModelStates(
        parameters_bytes=0
        if options.offloads_parameters
        else options.weight_versions
        * options.weights_bytes(
            options.held(num_parameters, num_expert, from_stage=3),
            options.held(num_fp8, of_experts, from_stage=3),
        ),
        gradients_bytes=0
        if options.offloads_gradients
        else num_trained * options.gradient_bytes
        if options.keeps_gradients
        else num_held(2) * options.shard_gradient_bytes,
        optimizer_bytes=0 if options.offloads else sum(options.state_bytes) * num_held(1),
    )
