"""Trains a small GPT: ranks run the passes and messages of simtrain's schedules.

A rank runs its stage's actions and blocking exchanges in the simulated order
(`schedules.blocking_steps`), then Megatron-LM's work after the last backward pass
(`workload.optimizer`). Tokens are random, since times do not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrate.torch_model.gpt import Stage
from calibrate.torch_model.layer import DIVIDED_DIMENSION
from calibrate.torch_model.parallel import TensorGroup, own_group
from calibrate.torch_model.shape import LayerShape
from simtrain.scenario import Scenario
from simtrain.schedules import Action, Exchange, blocking_steps

COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LARGEST_NORM = 1.0
"""Limit of the clipped gradients' norm; Megatron-LM's default."""
_SEED = 1234


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's stage and its process groups.

    Tensor-parallel ranks are innermost. `ends` joins the first and the last of several stages.
    """

    stage: int
    num_stages: int
    tensor: TensorGroup
    ends: dist.ProcessGroup | None

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """The place of this process; all processes must call it together, since it creates groups.

        Raises ValueError if the scenario needs another number of processes, or replicas.
        """
        split = scenario.parallelism
        num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        if (scenario.num_gpus, split.data) != (num_ranks, 1):
            raise ValueError(f"{num_ranks} processes cannot run t x p x d = {split}")
        if num_ranks == 1:
            return cls(0, 1, TensorGroup(), None)
        t, p = split.tensor, split.pipeline
        stages = [list(range(stage * t, (stage + 1) * t)) for stage in range(p)]
        group = own_group(stages)
        ends = own_group([[i, i + (p - 1) * t] for i in range(t)]) if p > 1 else None
        tensor = TensorGroup(t, split.sequence_parallel, group)
        return cls(dist.get_rank() // t, p, tensor, ends)

    def peer(self, stage: int) -> int:
        """Rank of the process with the same part of another stage."""
        return stage * self.tensor.size + self.tensor.rank


class TrainingRank:
    """One rank of a scenario in training; its peers must make the same calls.

    `dtype` replaces the data type of the scenario's weights and activations.
    Raises ValueError if the scenario needs another number of processes.
    """

    def __init__(self, scenario: Scenario, device: str, dtype: torch.dtype | None = None) -> None:
        self.scenario, self.device = scenario, device
        self.dtype = dtype or COMPUTE_DTYPES[scenario.precision.compute]
        self.place = RankPlace.of(scenario)
        self.shape = LayerShape.of(scenario)
        self._steps = blocking_steps(scenario.order.actions)[self.place.stage]
        self._tokens = torch.Generator().manual_seed(_SEED)
        self.stage = self._build()
        self.optimizer = MixedPrecisionAdam(self.stage.parameters(), learning_rate=1e-4)
        # A parameter counts once in the norm: an undivided one on the first tensor-parallel rank, a
        # tied table on the first stage.
        group, names = self.place.tensor, [name for name, _ in self.stage.named_parameters()]
        counted = [_is_divided(name, group) or group.rank == 0 for name in names]
        if scenario.model.tied_embeddings and not self.stage.first and self.stage.last:
            counted[names.index("output")] = False
        self._counted = torch.tensor(counted, device=device, dtype=torch.float32)
        self._unsent: dict[Action, Tensor] = {}
        self._arrived: dict[Action, Tensor] = {}
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def iteration(self) -> Tensor:
        """Run data, loss, backward and optimizer; return the mean loss, 0 before the last stage."""
        loss = self.passes()
        self.finish_gradients()
        self.clip_gradients()
        self.optimizer.step()
        return loss

    def passes(self) -> Tensor:
        """Run all forward and backward passes; gradients accumulate in `main_grad`."""
        batch = self._batch()
        loss = torch.zeros((), device=self.device)
        for step in self._steps:
            if isinstance(step, Exchange):
                self._exchange(step)
            elif step.kind == "F":
                loss += self._forward(step, *batch[step.microbatch])
            else:
                self._backward(step)
        return loss

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Average gradients over replicas; sum those of parameters that several ranks share."""
        torch._foreach_div_(self.optimizer.gradients, float(self.scenario.parallelism.data))
        if self.place.tensor.sequence_parallel:
            self._sum_undivided_gradients()
        if self.place.ends is not None and self.scenario.model.tied_embeddings:
            table = self.stage.words if self.stage.first else self.stage.output
            dist.all_reduce(table.main_grad, group=self.place.ends)  # type: ignore[attr-defined]

    def _sum_undivided_gradients(self) -> None:
        """Sum gradients that cover only this rank's tokens: of layer norms and some biases.

        One all-reduce has them all (Megatron-LM, `_allreduce_non_tensor_model_parallel_grads`).
        """
        gradients: list[Tensor] = [
            parameter.main_grad  # type: ignore[attr-defined]
            for name, parameter in self.stage.named_parameters()
            if not _is_divided(name, self.place.tensor)
        ]
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        self.place.tensor.all_reduce(joined).wait()
        parts = joined.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(
            gradients,
            [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)],
        )

    @torch.no_grad()
    def clip_gradients(self) -> None:
        """Scale all gradients so that their norm over all ranks is at most LARGEST_NORM."""
        gradients = self.optimizer.gradients
        norms = torch.stack(torch._foreach_norm(gradients))
        squared = (norms * self._counted).square().sum()
        if dist.is_initialized():
            dist.all_reduce(squared)
        torch._foreach_mul_(gradients, (LARGEST_NORM / (squared.sqrt() + 1e-6)).clamp(max=1.0))

    def _build(self) -> Stage:
        """Build the stage from one seed on every rank, so that shared weights start equal."""
        torch.manual_seed(_SEED)
        place, scenario = self.place, self.scenario
        with torch.device(self.device):
            stage = Stage(
                self.shape,
                scenario.layers_of_stage(place.stage),
                scenario.recompute,
                place.tensor,
                first=place.stage == 0,
                last=place.stage == place.num_stages - 1,
                tied=scenario.model.tied_embeddings,
            ).to(self.dtype)
        if place.ends is not None and scenario.model.tied_embeddings:
            first_stage = place.peer(0)
            table = stage.words if stage.first else stage.output
            dist.broadcast(table.data, first_stage, group=place.ends)
        return stage

    def _batch(self) -> list[tuple[Tensor, Tensor]]:
        """Tokens and labels [s, b] of each microbatch, the same on every rank."""
        model, micro = self.scenario.model, self.scenario.batch.micro
        size = 2, self.scenario.num_microbatches, model.seq_length, micro
        words = torch.randint(model.vocab_size, size, generator=self._tokens).to(self.device)
        return list(zip(*words, strict=True))

    def _forward(self, action: Action, tokens: Tensor, labels: Tensor) -> Tensor | float:
        x = tokens if self.stage.first else self._arrived.pop(action).requires_grad_()
        output: Tensor = self.stage(x, labels if self.stage.last else None)
        if self.stage.last:
            output = output / self.scenario.num_microbatches
        self._kept[action.microbatch] = x, output
        if self.stage.last:
            return output.detach()
        self._unsent[action] = output.detach()
        return 0.0

    def _backward(self, action: Action) -> None:
        x, output = self._kept.pop(action.microbatch)
        output.backward(None if self.stage.last else self._arrived.pop(action))
        if not self.stage.first:
            assert x.grad is not None, "the stage's input is where its gradients end"
            self._unsent[action] = x.grad

    def _exchange(self, exchange: Exchange) -> None:
        """Post all sends and receives together, and wait for all."""
        shape, ops = self.shape, []
        for message in exchange.sends:
            tensor = self._unsent.pop(message.producer).contiguous()
            ops.append(dist.P2POp(dist.isend, tensor, self.place.peer(message.receiver)))
        size = shape.local_tokens // shape.microbatch, shape.microbatch, shape.hidden
        for message in exchange.receives:
            tensor = torch.empty(size, dtype=self.dtype, device=self.device)
            self._arrived[message.consumer] = tensor
            ops.append(dist.P2POp(dist.irecv, tensor, self.place.peer(message.sender)))
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def _is_divided(name: str, group: TensorGroup) -> bool:
    """Whether each rank holds its own part of a parameter."""
    if name == "positions":
        return group.sequence_parallel
    return name in ("words", "output") or name.endswith(tuple(DIVIDED_DIMENSION))


BETAS = 0.9, 0.95
"""Megatron-LM's published runs of GPT-3."""
EPSILON = 1e-8


class MixedPrecisionAdam:
    """Adam for parameters whose gradients accumulate in their `main_grad`.

    `gradients` lists the `main_grad` of each parameter, in order.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.num_steps = 0
        self._parameters: list[Tensor] = list(parameters)
        self.gradients = [_zeros(parameter) for parameter in self._parameters]
        # In fp32 training the weights are their own masters.
        self._masters = [
            parameter.detach() if parameter.dtype == torch.float32 else parameter.detach().float()
            for parameter in self._parameters
        ]
        self._momenta = [_zeros(parameter) for parameter in self._parameters]
        self._variances = [_zeros(parameter) for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, self.gradients, strict=True):
            parameter.main_grad = gradient  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(_add_to_main)

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights with the accumulated gradients, and zero the gradients."""
        self.num_steps += 1
        states = self._masters, self.gradients, self._momenta, self._variances
        fused_adam(*states, self.num_steps, self.learning_rate)
        if any(weight.dtype != torch.float32 for weight in self._parameters):
            torch._foreach_copy_(self._parameters, self._masters)
        torch._foreach_zero_(self.gradients)


@torch.no_grad()
def fused_adam(
    masters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    variances: list[Tensor],
    num_steps: int,
    learning_rate: float,
) -> None:
    """Update all master weights in fp32; this is step `num_steps` of training, from 1."""
    step = torch.full((), float(num_steps), device=masters[0].device)
    torch._fused_adam_(
        *(masters, gradients, momenta, variances, [], [step] * len(masters)),
        lr=learning_rate,
        beta1=BETAS[0],
        beta2=BETAS[1],
        weight_decay=0.0,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
    )


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)


def _add_to_main(parameter: Tensor) -> None:
    """Add gradients of norms, biases and tables; those of products are already added."""
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None
