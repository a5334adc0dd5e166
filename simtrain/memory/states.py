"""Model states: parameters, their gradients, and what Adam keeps of each parameter.

Sources: Rajbhandari et al., "ZeRO" (2020), Section 3.1: 2Ψ + 2Ψ + 12Ψ bytes of mixed-precision
Adam, sharded over the replicas from the optimizer states (stage 1) over the gradients (2) to the
parameters (3). Megatron-LM accumulates gradients in fp32: 18 bytes a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.step_options import StepOptions


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Bytes that a rank holds from the first iteration to the last."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        """All three."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def model_states(
    options: StepOptions, num_parameters: int, num_expert: int = 0, num_fp8: int = 0
) -> ModelStates:
    """States of `num_parameters` on each rank of a stage, as ZeRO and offload leave them there.

    `num_expert` of the parameters belong to experts, `num_fp8` are weights of fp8 products.
    """

    def held(from_stage: int) -> int:
        return options.held(num_parameters, num_expert, from_stage=from_stage)

    of_experts = num_expert if num_fp8 else 0
    return ModelStates(
        parameters_bytes=options.weights_bytes(
            held(3), options.held(num_fp8, of_experts, from_stage=3)
        ),
        gradients_bytes=num_parameters * options.gradient_bytes
        if options.keeps_gradients
        else held(2) * options.shard_gradient_bytes,
        optimizer_bytes=0 if options.offloads else sum(options.state_bytes) * held(1),
    )
