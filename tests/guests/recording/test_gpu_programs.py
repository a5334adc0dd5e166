"""Programs that were written for GPUs: they name CUDA, compile, and launch kernels of Triton."""

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from simtrain.guests.recording.child import step as recorder
from simtrain.guests.recording.child.op_log import Modules, OpLog
from simtrain.guests.recording.child.patches import patches
from simtrain.guests.recording.child.step import Step
from simtrain.guests.recording.child.streams import Streams
from tests.helpers import torch_programs as programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
    pytest.mark.filterwarnings("ignore:.*GradScaler"),
]
Result = tuple[nn.Module, Tensor, Any, torch.optim.Optimizer]


def ops(step: Step) -> list[tuple[Any, ...]]:
    return [(op.op, op.reads, op.writes, op.stream, op.group) for op in step.ops]


def network(device: Any, mesh: str) -> Result:
    """Return a network on a device, sharded over a mesh of a type."""
    with torch.device(device):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    fully_shard(model, mesh=init_device_mesh(mesh, (dist.get_world_size(),)))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(mesh, dtype=torch.bfloat16):
            y = model(x.to(device, non_blocking=True))
        return y.float().sum()

    batch = torch.zeros(8, 64, device=device)
    return model, batch, loss, torch.optim.AdamW(model.parameters())


def on_gpu() -> Result:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    model, *others = network(torch.device("cuda", 0), "cuda")
    assert model.cuda() is model and not torch.cuda.is_available()
    torch.amp.GradScaler("cuda")
    torch.cuda.synchronize()
    return model, *others  # type: ignore[return-value]


def test_a_program_on_cuda_is_that_on_the_default_device() -> None:
    cpu = recorder.record(network, {"device": "cpu", "mesh": "cpu"}, 4)
    assert ops(recorder.record(on_gpu, {}, 4)) == ops(cpu)


def test_streams_of_cuda_run_beside_the_kernels() -> None:
    def train() -> Any:
        side = torch.cuda.Stream()

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
            torch.cuda.current_stream().wait_stream(side)
            return model(x + y).sum()

        return nn.Linear(64, 64), torch.zeros(8, 64), loss

    doubled, added = recorder.record(train, {}, 1).ops[:2]
    assert doubled.stream > 0 and added.stream == 0 and added.waits == [0]


def compiled() -> Result:
    model, batch, loss, optimizer = programs.llama()
    model.compile()
    return torch.compile(model), batch, torch.compile(dynamic=True)(loss), optimizer  # type: ignore[return-value]


def test_a_compiled_program_has_the_ops_of_the_eager_one() -> None:
    step = recorder.record(compiled, {}, 1)
    assert ops(step) == ops(recorder.record(programs.llama, {}, 1))
    (remark,) = step.fields["remarks"]
    assert remark.startswith("torch.compile is left out")


def test_kernels_of_triton_are_logged_with_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        """Stands for Triton's, which launches `kernel[grid](tensors)` with `run`."""

        def __init__(self) -> None:
            self.fn = programs.llama

        def run(self, *args: Any, **options: Any) -> None:
            raise AssertionError("it needs a GPU")

    names = "triton", "triton.runtime", "triton.runtime.jit", "triton.runtime.autotuner"
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(modules["triton.runtime.jit"], "JITFunction", Kernel, False)
    tuned = type("Autotuner", (Kernel,), {})
    monkeypatch.setattr(modules["triton.runtime.autotuner"], "Autotuner", tuned, False)

    def train() -> Any:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            y = model(x)
            Kernel().run(x, y, 3, grid=(1,), warmup=False)
            return y.sum()

        return nn.Linear(64, 32), torch.zeros(8, 64), loss

    (op,) = (op for op in recorder.record(train, {}, 1).ops if op.op.startswith("triton."))
    assert (op.op, op.reads) == ("triton.llama", ["f32[8,64]", "f32[8,32]"])


def test_nothing_stays_patched_and_every_patch_has_a_reason() -> None:
    table = [*patches(OpLog(Streams(), Modules()))]
    places = [(each.owner, name) for each in table for name in each.values]
    before = [inspect.getattr_static(*place, None) for place in places]
    recorder.record(compiled, {}, 1)
    with pytest.raises(recorder.WrongProgram):
        recorder.record(programs.returns_model, {}, 1)
    assert [inspect.getattr_static(*place, None) for place in places] == before
    assert len(table) > 20 and all(each.why for each in table)
    assert not dist.is_initialized()
    assert torch._C._unset_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None
