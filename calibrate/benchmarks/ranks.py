"""The processes of a measurement, as torchrun starts them: their numbers and their agreement."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from simtrain.errors import InputError

_TIMEOUT = timedelta(minutes=5)
"""Time that a rank waits for the others, above the longest time of any measurement."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """`size` processes, `per_node` of them on each node; this one has number `rank`."""

    rank: int = 0
    size: int = 1
    per_node: int = 1

    @property
    def num_nodes(self) -> int:
        return self.size // self.per_node

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The largest of each number over all ranks, which wait for each other."""
        if self.size == 1:
            return list(seconds)
        values = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return [float(value) for value in values]

    def meet(self) -> None:
        self.slowest([0.0])

    def from_first(self, value: Any) -> Any:
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]


def check_launcher(pid: int) -> None:
    """Stop if torchrun, which was process `pid` when it started this rank, is gone.

    torchrun may be killed without its ranks: they must not write when the command is run again.

    Raises:
        InputError: E715, this rank has another parent now.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != pid:
        fix = "the same command measures what is missing"
        raise InputError.of("E715", "torchrun is gone, so this rank stops", fix=fix)


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Connect the ranks that torchrun's environment names, or none if there is one process.

    Raises:
        InputError: E702, no GPU for this rank; E714, torch without NCCL; E715, another rank died.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    ranks = Ranks(int(os.environ.get("RANK", "0")), size, per_node)
    if device == "cuda":
        if not torch.cuda.is_available():
            raise InputError.of("E702", "torch finds no CUDA device", fix="--device cpu")
        num_gpus = torch.cuda.device_count()
        if per_node > num_gpus:
            message = f"{per_node} processes on a node, but torch finds {num_gpus} CUDA devices"
            raise InputError.of("E702", message, fix=f"torchrun --nproc-per-node {num_gpus}")
        torch.cuda.set_device(local)
    if size == 1:
        yield ranks
        return
    if device == "cuda" and not dist.is_nccl_available():
        message = "this torch was built without NCCL, which GPUs' collectives need"
        fix = "install torch for CUDA on Linux, or measure one process without torchrun"
        raise InputError.of("E714", message, fix=fix)
    try:
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
        try:
            yield ranks
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:  # of one rank, which died or hangs, all others notice it
        if (
            not isinstance(error, vars(dist).get("DistError", ()))
            and "gloo" not in str(error).lower()
        ):
            raise
        message = "another rank died or hangs, so this one stops"
        fix = "see that rank's own message; the same command measures what is missing"
        reason = str(error).splitlines()[0]
        raise InputError.of("E715", message, fix=fix, reason=reason) from error
