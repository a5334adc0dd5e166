"""A mixture of experts in torch that is expert-parallel as torchtitan's; tests record it.

Each rank has some experts. An all-to-all brings every token to the ranks of its experts, and a
second one brings the results back. How many tokens go where is read on the host (`.tolist()`).
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from tests.helpers.torch_programs import Step

VOCABULARY, LENGTH, HIDDEN, INNER, EXPERTS, CHOICES = 256, 32, 64, 128, 8, 2


class Experts(nn.Module):
    """Experts that multiply their tokens in one grouped product."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.rand(EXPERTS, HIDDEN, INNER) * 0.02)
        self.down = nn.Parameter(torch.rand(EXPERTS, INNER, HIDDEN) * 0.02)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        up, down = (w.to_local() if isinstance(w, DTensor) else w for w in (self.up, self.down))
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        y = F.silu(torch._grouped_mm(x.bfloat16(), up.bfloat16(), offs=ends))
        return torch._grouped_mm(y, down.bfloat16(), offs=ends).type_as(x)


class Mixture(nn.Module):
    """A router and its experts. Balanced routing is forced as torchtitan's debug setting does."""

    def __init__(self, forced: bool) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(HIDDEN, EXPERTS, bias=False), Experts()
        self.forced = forced

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).float().softmax(-1)
        weights, chosen = scores.topk(CHOICES, -1)
        if self.forced:
            chosen = (torch.arange(chosen.numel()) % EXPERTS).view(chosen.shape)
            weights = scores.gather(1, chosen)
        counts = torch.histc(chosen.flatten().float(), bins=EXPERTS, min=0, max=EXPERTS).long()
        order = chosen.flatten().argsort(stable=True)
        routed = self.experts(tokens[order // CHOICES], counts)
        routed = routed * weights.flatten()[order].unsqueeze(-1).type_as(routed)
        y = torch.zeros_like(tokens).index_add(0, order // CHOICES, routed)
        return x + y.view(x.shape)


class ExpertParallel(ParallelStyle):
    """Divide experts over ranks; tokens go to them and back."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._shard, self._send, self._return)

    def _shard(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, each in [*module.named_parameters(recurse=False)]:
            setattr(module, key, nn.Parameter(distribute_tensor(each, mesh, [Shard(0)])))

    def _send(self, module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        x, counts = inputs
        ranks, group = mesh.size(), mesh.get_group()
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        self.leaving = counts.view(ranks, -1).sum(1).long().tolist()
        self.coming = arriving.view(ranks, -1).sum(1).long().tolist()
        x = all_to_all_single_autograd(x, self.coming, self.leaving, group)
        # From rank, then expert, to expert, then rank.
        numbers = torch.arange(arriving.numel() // ranks).repeat(ranks)
        of_row = numbers.repeat_interleave(arriving.long(), output_size=sum(self.coming))
        self.order = of_row.argsort(stable=True)
        return x[self.order], arriving.view(ranks, -1).sum(0)

    def _return(self, module: nn.Module, output: Tensor, mesh: DeviceMesh) -> Tensor:
        unsorted = torch.empty_like(output)
        unsorted[self.order] = output
        return all_to_all_single_autograd(unsorted, self.leaving, self.coming, mesh.get_group())


class Model(nn.Module):
    """Mixtures without attention."""

    def __init__(self, layers: int, forced: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Mixture(forced) for _ in range(layers))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def mixture(experts: int = 2, shards: bool = False, forced: bool = False, layers: int = 2) -> Step:
    """Return a mixture on groups of `experts` ranks, sharded or not over all ranks."""
    world = dist.get_world_size()
    model = Model(layers, forced)
    axes = ("dp_shard_mod_ep", "ep")
    mesh = init_device_mesh("cpu", (world // experts, experts), mesh_dim_names=axes)
    for layer in model.layers:
        parallelize_module(layer.experts, mesh["ep"], ExpertParallel())
    if shards:
        everywhere = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for layer in model.layers:
            fully_shard(layer.experts, mesh=mesh["dp_shard_mod_ep"], mp_policy=precision)
            fully_shard(layer, mesh=everywhere, mp_policy=precision)
        fully_shard(model, mesh=everywhere, mp_policy=precision)
    kinds: dict[Any, list[Any]] = {}
    for each in model.parameters():
        kinds.setdefault(getattr(each, "device_mesh", None), []).append(each)
    groups = [{"params": each} for each in kinds.values()]
    batch = torch.zeros(2, LENGTH, dtype=torch.long)
    return model, batch, loss, torch.optim.AdamW(groups)
