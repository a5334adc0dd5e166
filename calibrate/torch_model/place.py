"""The place of a process in a scenario: tensor-parallel ranks innermost, then stages."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Self

import torch.distributed as dist

from calibrate.torch_model.parallel import TensorGroup
from simtrain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Place:
    """The stage and the groups of a rank; first and last stages form `ends`.

    `everyone` is None if there is one process.
    """

    stage: int
    num_stages: int
    tensor: TensorGroup
    ends: dist.ProcessGroup | None
    everyone: dist.ProcessGroup | None

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """The place of this process; all processes must call it together, since it makes groups.

        Raises ValueError if the scenario needs another number of processes, or replicas.
        """
        split = scenario.parallelism
        num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        if (scenario.num_gpus, split.data) != (num_ranks, 1):
            raise ValueError(f"{num_ranks} processes cannot run t x p x d = {split}")
        if num_ranks == 1:
            return cls(0, 1, TensorGroup(), None, None)
        t, p = split.tensor, split.pipeline
        stages = [list(range(stage * t, (stage + 1) * t)) for stage in range(p)]
        group = _own_group(stages)
        ends = _own_group([[i, i + (p - 1) * t] for i in range(t)]) if p > 1 else None
        tensor = TensorGroup(t, split.sequence_parallel, group)
        return cls(dist.get_rank() // t, p, tensor, ends, dist.group.WORLD)

    def peer(self, stage: int) -> int:
        """The process that holds the same part of another stage."""
        return stage * self.tensor.size + self.tensor.rank


def _own_group(groups: list[list[int]]) -> dist.ProcessGroup | None:
    """Make each group, and return the one of this process, if any."""
    made = [(ranks, dist.new_group(ranks)) for ranks in groups]
    assert len(set(itertools.chain(*groups))) == sum(map(len, groups)), "a rank is in one group"
    own = [group for ranks, group in made if dist.get_rank() in ranks]
    return own[0] if own else None
