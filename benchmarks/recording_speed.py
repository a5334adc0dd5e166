"""Time the recording of Llama 3 70B on 256 ranks: `fully_shard` and 8-way tensor parallelism.

Processor seconds of user and system, because other processes of a shared machine change the elapsed
time, and their ratio to the import of torch. The target is 20 s and 2 GiB on two cores.
"""

import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # recorded programs find files beside them

import subprocess
import time
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from benchmarks.torchtitan_program import Transformer, checkpointed, loss
from simtrain.recording.program import write_program
from simtrain.recording.record import RecordingRequest, record_program
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate

RANKS, LAYERS = 256, 80


def train(
    layers: int = LAYERS, tensor: int = 8, length: int = 8192, ac: str = "full"
) -> tuple[nn.Module, Tensor, Any, torch.optim.Optimizer]:
    """Build Llama 3 70B as torchtitan parallelizes it; `ac` is "full", "op" or "none"."""
    model = Transformer(layers, 8192, 64, 8, 28672, 128256, length)
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks // tensor, tensor), mesh_dim_names=("dp", "tp"))
    divide(model, mesh["tp"])
    if ac != "none":
        for number, layer in enumerate(model.layers):
            model.layers[number] = checkpointed(layer, ac)
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for number, layer in enumerate(model.layers):
        is_last = number == layers - 1
        fully_shard(layer, mesh=mesh["dp"], mp_policy=precision, reshard_after_forward=not is_last)
    fully_shard(model, mesh=mesh["dp"], mp_policy=precision)
    batch = torch.zeros(1, length, dtype=torch.long)
    return model, batch, loss, torch.optim.AdamW(model.parameters(), fused=True)


def divide(model: Transformer, mesh: Any) -> None:
    """Divide a model with tensor and sequence parallelism (torchtitan's `apply_tp`)."""
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    ends: dict[str, Any] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)

    def gathered(*others: None) -> PrepareModuleInput:
        """Gather the first input over sequences."""
        return PrepareModuleInput(
            input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others)
        )

    plan: dict[str, Any] = {
        "attention_norm": SequenceParallel(),
        "ffn_norm": SequenceParallel(),
        "attention": gathered(None),
        "feed_forward": gathered(),
    }
    plan |= {f"attention.{name}": column for name in ("wq", "wk", "wv")} | {"attention.wo": row}
    plan |= {f"feed_forward.{name}": column for name in ("w1", "w3")} | {"feed_forward.w2": row}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def processor_seconds() -> float:
    """Return what ended processes have used so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(layers: int) -> None:
    start_s = processor_seconds()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    import_s = processor_seconds() - start_s
    request = RecordingRequest(Path(__file__), "train", RANKS, arguments={"layers": layers})
    program = record_program(request)
    taken_s = processor_seconds() - start_s - import_s
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    with TemporaryDirectory() as folder:
        file = Path(folder) / "llama.program.json.gz"
        write_program(program, file)
        kib = file.stat().st_size / 1024
        start_s = time.process_time()
        scenario = Scenario.model_validate(
            {"program": str(file), "cluster": "h100_sxm", "software": {"stack": "torchtitan"}}
        )
        simulate(scenario)
        simulated_s = time.process_time() - start_s
    runs = [run for runs in program.passes.values() for run in runs]
    row = {
        "layers": layers,
        "ops": sum(run.count * len(run.ops) for run in runs),
        "lines": sum(len(run.ops) for run in runs),
        "KiB": f"{kib:.1f}",
        "GiB to record": f"{peak_gib:.2f}",
        "s to record": f"{taken_s:.1f}",
        "imports of torch": f"{taken_s / import_s:.1f}",
        "s to simulate": f"{simulated_s:.2f}",
    }
    print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}\n| {' | '.join(map(str, row.values()))} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else LAYERS)
