"""Programs in processes of gloo, with whose collectives those of recordings are compared."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simtrain.guests.recording.child import step as recorder
from simtrain.guests.recording.child.tensors import text_of


class Collectives(TorchDispatchMode):
    """Writes the collectives of a real process: name, tensors, and ranks of the group."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, torch.distributed.tensor.DTensor) for each in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.replace("::", ".", 1)
        if func in collective_ops - sync_ops:
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            group = CollectiveOp.get_process_group(func, args)
            ranks = torch.distributed.get_process_group_ranks(group)
            self.lines.append(f"{name} {[*map(text_of, tensors)]} {ranks}")
        return result


def run_processes(function: Callable[..., None], arguments: tuple[Any, ...], number: int) -> None:
    """Run a function in so many processes; the last argument is the folder of their store.

    On a busy machine gloo's processes sometimes wait for each other: they are started once more.
    """
    for _ in range(2):
        Path(arguments[-1], "store").unlink(missing_ok=True)
        spawned: Any = mp.start_processes(  # type: ignore[attr-defined]
            function, arguments, nprocs=number, join=False, start_method="spawn"
        )
        end_s = time.monotonic() + 90
        try:
            while time.monotonic() < end_s:
                if spawned.join(1):
                    return
        finally:
            for process in spawned.processes:
                process.kill()
    raise AssertionError("the processes wait for each other")


def real_process(
    rank: int, gpus: int, program: Callable[..., Any], arguments: Mapping[str, Any], folder: str
) -> None:
    """Run two steps of a program, and let the first rank write the collectives of the second."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=gpus
    )
    model, batch, loss, optimizer = program(**arguments)
    for _ in range(2):
        with Collectives() as seen:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    if rank == 0:
        Path(folder, "lines").write_text("\n".join(seen.lines), "utf-8")
    torch.distributed.destroy_process_group()


def real_collectives(
    program: Callable[..., Any], arguments: Mapping[str, Any], gpus: int, folder: Path
) -> list[str]:
    """Return the collectives of the first of so many processes of gloo."""
    run_processes(real_process, (gpus, program, arguments, str(folder)), gpus)
    return Path(folder, "lines").read_text("utf-8").splitlines()


def recorded_collectives(
    program: Callable[..., Any], arguments: Mapping[str, Any], gpus: int
) -> list[str]:
    """Return the collectives of a recording, in the same words."""
    step = recorder.record(program, arguments, gpus)
    return [f"{op.op} {op.reads} {[*op.group]}" for op in step.ops if op.group is not None]
