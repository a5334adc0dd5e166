"""A small model that PyTorch's runtime trains with the order of a file."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, ROWS = 8, 2


def model_of(virtual_stages: int) -> list[nn.Module]:
    """Return the same layers on each rank."""
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(virtual_stages)]


def data_of(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of all microbatches."""
    torch.manual_seed(2)
    inputs, targets = torch.randn(2, microbatches * ROWS, WIDTH)
    return inputs, targets


def loss_of(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss whose mean over microbatches is that of the whole batch."""
    return ((y - target) ** 2).mean()


def train_in_order(
    rank: int, folder: Path, file: str, ranks: list[list[int]], microbatches: int
) -> None:
    """Run one iteration of a rank in the order of a file, and write its gradients.

    Args:
        rank: of this process.
        folder: where ranks meet and write.
        file: the order, as `Schedule.to_csv` writes it.
        ranks: the virtual stages of each rank.
        microbatches: number of microbatches.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(ranks)
    )
    total = sum(map(len, ranks))
    layers, (inputs, targets) = model_of(total), data_of(microbatches)
    stages = [PipelineStage(layers[v], v, total, torch.device("cpu")) for v in ranks[rank]]
    schedule = _PipelineScheduleRuntime(stages, microbatches, loss_fn=loss_of)
    schedule._load_csv(file, format="compute_only")
    given = (inputs,) if 0 in ranks[rank] else ()
    wanted = {"target": targets} if total - 1 in ranks[rank] else {}
    schedule.step(*given, **wanted)
    gradients = {
        v: [parameter.grad.flatten().tolist() for parameter in layers[v].parameters()]
        for v in ranks[rank]
    }
    (folder / f"{rank}.json").write_text(json.dumps(gradients))
    dist.barrier()
    dist.destroy_process_group()
