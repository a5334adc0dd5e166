"""Rank processes that share one import of torch, which takes longer than their work."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch


def run_ranks(rank: Callable[..., None], arguments: tuple[Any, ...], number: int) -> None:
    """Call `rank(0, *arguments)`, `rank(1, *arguments)`, ... in processes, and wait for them.

    They are forked from a server that has imported torch and the measured modules.
    """
    multiprocessing.set_forkserver_preload(["torch.distributed", "calibrate.torch_model.training"])
    torch.multiprocessing.start_processes(rank, arguments, nprocs=number, start_method="forkserver")
