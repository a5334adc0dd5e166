"""The torch layer compared with a plain one, and its saved tensors and collectives, on one or more
ranks.
"""

import dataclasses
import json
import pathlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from calibrate.torch_model.layer import DIVIDED_DIMENSION, DROPOUT, Recompute, TorchLayer
from calibrate.torch_model.parallel import InFlight, TensorGroup
from calibrate.torch_model.shape import LayerShape
from simtrain.workload.work import CollectiveKind

Tensors = dict[str, Tensor]
MASK_SEED = 2


@dataclasses.dataclass(frozen=True, slots=True)
class RecordingGroup(TensorGroup):
    """A group that records the kind and the array size in bytes of every collective."""

    sent: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    def all_reduce(self, partial: Tensor) -> InFlight:
        if self.size > 1:
            self.sent.append((CollectiveKind.ALL_REDUCE, partial.nbytes))
        return TensorGroup.all_reduce(self, partial)

    def all_gather(self, part: Tensor) -> InFlight:
        self.sent.append((CollectiveKind.ALL_GATHER, part.nbytes * self.size))
        return TensorGroup.all_gather(self, part)

    def reduce_scatter(self, partial: Tensor) -> InFlight:
        self.sent.append((CollectiveKind.REDUCE_SCATTER, partial.nbytes))
        return TensorGroup.reduce_scatter(self, partial)


def sum_shared_gradients(layer: TorchLayer) -> None:
    """Sum the gradients of unsharded parameters, to which each rank contributes its tokens."""
    if not layer.group.sequence_parallel:
        return
    for name, parameter in layer.named_parameters():
        if name not in DIVIDED_DIMENSION and parameter.grad is not None:
            layer.group.all_reduce(parameter.grad).wait()


def tensors_kept(layer: nn.Module, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return a module's output, and the tensors that its forward pass saves, without duplicates.

    Parameters are omitted. Two views of the same elements count as one tensor.
    """
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(*inputs)
    own = {parameter.data_ptr() for parameter in layer.parameters()}
    kept = {(t.data_ptr(), t.numel()): t for t in packed if t.data_ptr() not in own}
    return output, list(kept.values())


def bytes_kept(shape: LayerShape, recompute: Recompute, group: TensorGroup) -> dict[str, Any]:
    """Return the bytes of each tensor that a bfloat16 layer saves, and of all their storages."""
    _, kept = forward_pass(shape, recompute, group)
    storages = {storage.data_ptr(): storage for storage in map(Tensor.untyped_storage, kept)}
    return {
        "tensors": [tensor.nbytes for tensor in kept],
        "storages": sum(storage.nbytes() for storage in storages.values()),
    }


def collectives_sent(shape: LayerShape, recompute: Recompute) -> dict[str, list[tuple[str, int]]]:
    """Return the collectives of the forward and backward pass of a bfloat16 layer."""
    group = RecordingGroup(shape.tensor, shape.sequence_parallel)
    output, _ = forward_pass(shape, recompute, group)
    forward = list(group.sent)
    output.backward(torch.ones_like(output))
    return {"forward": forward, "backward": group.sent[len(forward) :]}


def forward_pass(
    shape: LayerShape, recompute: Recompute, group: TensorGroup
) -> tuple[Tensor, list[Tensor]]:
    """Return the output of a bfloat16 layer for a random input, and the tensors that it saves."""
    layer = TorchLayer(shape, recompute, group).bfloat16()
    size = shape.local_tokens // shape.microbatch, shape.microbatch, shape.hidden
    hidden = torch.randn(size, dtype=torch.bfloat16, requires_grad=True)
    return tensors_kept(layer, hidden)


def plain_layer(hidden: Tensor, weights: Tensors, masks: list[Tensor], heads: int) -> Tensor:
    """Compute the unsharded layer with torch's own functions: hidden is [s, b, h], masks are as
    drawn.
    """
    s, b, h = hidden.shape

    def dropped(values: Tensor, mask: Tensor) -> Tensor:
        return values * mask / (1 - DROPOUT)

    def linear(values: Tensor, name: str) -> Tensor:
        return functional.linear(values, weights[f"{name}_weight"], weights[f"{name}_bias"])

    def norm(values: Tensor, block: str) -> Tensor:
        gain, bias = weights[f"{block}.norm.weight"], weights[f"{block}.norm.bias"]
        return functional.layer_norm(values, (h,), gain, bias)

    qkv = linear(norm(hidden, "attention"), "attention.query_key_value")
    q, k, v = qkv.view(s, b, heads, 3, h // heads).unbind(3)
    scores = torch.einsum("sbad,ubad->basu", q, k) / (h // heads) ** 0.5
    future = torch.arange(s)[None, :] > torch.arange(s)[:, None]
    softmax = scores.masked_fill(future, -torch.inf).softmax(-1)
    context = torch.einsum("basu,ubad->sbad", dropped(softmax, masks[0]), v).reshape(s, b, h)
    hidden = hidden + dropped(linear(context, "attention.projection"), masks[1])
    wide = functional.gelu(linear(norm(hidden, "mlp"), "mlp.expansion"), approximate="tanh")
    return hidden + dropped(linear(wide, "mlp.contraction"), masks[2])


def errors(
    shape: LayerShape, recompute: Recompute, group: TensorGroup, rank: int
) -> dict[str, float]:
    """Return relative differences from the plain layer: output, input gradient,
    weight gradients.
    """
    weights, hidden, gradient = drawn_once(shape)
    shard = own_weights(weights, group, rank)
    local = own_tokens(hidden, group, rank).detach().clone().requires_grad_()
    layer = layer_of(shape, recompute, group, shard)
    masks = drawn_masks(shape, group, shard, local)

    torch.manual_seed(MASK_SEED)
    output = layer(local)
    output.backward(own_tokens(gradient, group, rank))
    sum_shared_gradients(layer)
    found = {name: value.grad for name, value in layer.named_parameters()}

    whole = plain_layer(hidden, weights, masks, shape.heads)
    whole.backward(gradient)
    expected = own_weights({name: value.grad for name, value in weights.items()}, group, rank)

    found |= {"output": output, "input": local.grad}
    expected["output"] = own_tokens(whole, group, rank)
    expected["input"] = own_tokens(hidden.grad, group, rank)
    return {name: relative_error(found[name], expected[name]) for name in expected}


def drawn_once(shape: LayerShape) -> tuple[Tensors, Tensor, Tensor]:
    """Draw the weights of the unsharded layer, its input [s, b, h] and its output's gradient."""
    torch.manual_seed(1)
    undivided = dataclasses.replace(shape, tensor=1, sequence_parallel=False)
    layer = TorchLayer(undivided, Recompute.NONE).double()
    weights = {
        name: torch.randn_like(value).requires_grad_() for name, value in layer.named_parameters()
    }
    size = shape.seq_length, shape.microbatch, shape.hidden
    hidden = torch.randn(size, dtype=torch.float64, requires_grad=True)
    return weights, hidden, torch.randn_like(hidden)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest expected value."""
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


def layer_of(
    shape: LayerShape, recompute: Recompute, group: TensorGroup, weights: Tensors
) -> TorchLayer:
    layer = TorchLayer(shape, recompute, group).double()
    layer.load_state_dict(weights)
    return layer


def own_tokens(values: Tensor, group: TensorGroup, rank: int) -> Tensor:
    return values.chunk(group.size)[rank] if group.sequence_parallel else values


def own_weights(weights: Tensors, group: TensorGroup, rank: int) -> Tensors:
    """Return this rank's shard of each weight."""
    return {
        name: value.detach().chunk(group.size, DIVIDED_DIMENSION[name])[rank]
        if name in DIVIDED_DIMENSION
        else value.detach()
        for name, value in weights.items()
    }


def drawn_masks(
    shape: LayerShape, group: TensorGroup, weights: Tensors, local: Tensor
) -> list[Tensor]:
    """Return the three masks of MASK_SEED for all heads [b, a, s, s] and tokens [s, b, h].

    A fused core drops nothing on a CPU, so its mask undoes the scaling.
    """
    layer = layer_of(shape, Recompute.NONE, group, weights)
    torch.manual_seed(MASK_SEED)
    _, kept = tensors_kept(layer, local)
    tokens = [tensor for tensor in kept if tensor.dtype is torch.bool]
    s, b = shape.seq_length, shape.microbatch
    if shape.fused_attention:
        by_head = torch.tensor(1 - DROPOUT)
    else:
        by_head = joined(tokens.pop(0).view(b, shape.local_heads, s, s), 1, group)
    if not group.sequence_parallel:
        return [by_head, *tokens]
    return [by_head, *(joined(mask, 0, group) for mask in tokens)]


def joined(part: Tensor, dimension: int, group: TensorGroup) -> Tensor:
    """Concatenate the shards of all ranks."""
    if group.size == 1:
        return part
    parts = [torch.empty_like(part, dtype=torch.uint8) for _ in range(group.size)]
    dist.all_gather(parts, part.to(torch.uint8))
    return torch.cat(parts, dimension).bool()


def run_rank(rank: int, folder: str, shapes: list[LayerShape]) -> None:
    """Run a gloo rank with every shape and strategy, and write its results to one file per rank."""
    torch.set_num_threads(1)
    meeting = pathlib.Path(folder, "meeting").as_uri()
    size = shapes[0].tensor
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    found = []
    for shape in shapes:
        for recompute in Recompute:
            group = TensorGroup(shape.tensor, shape.sequence_parallel)
            case = {
                "errors": errors(shape, recompute, group, rank),
                "kept": bytes_kept(shape, recompute, group),
                "sent": collectives_sent(shape, recompute),
            }
            found.append(case)
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
