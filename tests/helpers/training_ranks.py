"""Training of one small model without dropout, in one process and in several."""

import pathlib
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from calibrate.torch_model import layer as torch_layer
from calibrate.torch_model.layer import DIVIDED_DIMENSION
from calibrate.torch_model.models import LayerSize
from calibrate.torch_model.training import TrainingRank
from simtrain.scenario import Scenario
from tests.helpers.torch_ranks import relative_error

Tensors = dict[str, Tensor]
MODEL = {
    "num_layers": 4,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "seq_length": 8,
    "vocab_size": 12,
}
LLAMA = LayerSize(16, 4, 8, 1, groups=2, ffn=24).model(4) | {"vocab_size": 12}
EXPERTS = LayerSize(16, 4, 8, 1, groups=2, ffn=24, experts=4).model(4) | {"vocab_size": 12}


def scenario(
    *, tied: bool, recompute: str = "none", model: dict[str, Any] = MODEL, **split: Any
) -> Scenario:
    data = {
        "model": model | {"tied_embeddings": tied},
        "parallelism": split,
        "batch": {"micro": 2, "global": 6},
        "recompute": recompute,
        "memory": {"deallocate_outputs": False},
        "attention_backend": "unfused" if model is MODEL else "fused",
    }
    return Scenario.model_validate(data)


def training_of(case: Scenario, weights: Tensors | None = None) -> TrainingRank:
    """Build a float64 training with shards of `weights`, or else with large random weights."""
    training = TrainingRank(case, "cpu", torch.float64)
    torch.manual_seed(7)
    with torch.no_grad():
        for name, value in training.stage.named_parameters():
            given = torch.randn_like(value) / 2
            value.copy_(given if weights is None else own_part(training, name, weights))
    return training


def trained(training: TrainingRank) -> Tensors:
    """Return the loss, and all gradients as Adam receives them."""
    with patch.object(torch_layer, "DROPOUT", 0.0):
        loss = training.passes()
    training.finish_gradients()
    training.clip_gradients()
    names = [name for name, _ in training.stage.named_parameters()]
    return {"loss": loss, **dict(zip(names, training.optimizer.gradients, strict=True))}


def own_part(training: TrainingRank, name: str, whole: Tensors) -> Tensor:
    """Return this rank's shard of the whole model's tensor for the parameter `name`."""
    place, within = training.place, name
    if name.startswith("layers."):
        number, within = name.removeprefix("layers.layers.").split(".", 1)
        first = place.stage * training.scenario.layers_of_stage(0)
        name = f"layers.layers.{int(number) + first}.{within}"
    if name == "output" and name not in whole:
        name = "words"
    dimension = 0 if name in ("words", "output") else DIVIDED_DIMENSION.get(within)
    if dimension is None:
        return whole[name]
    sizes = _side_by_side(training, within) or [whole[name].shape[dimension]]
    parts = whole[name].split(sizes, dimension)
    own = [part.chunk(place.tensor.size, dimension)[place.tensor.rank] for part in parts]
    return torch.cat(own, dimension)


def _side_by_side(training: TrainingRank, within: str) -> list[int]:
    """Return the rows of each projection in a weight that combines several.

    Queries, keys and values, or gate and up projection, are sharded separately.
    """
    model, size = training.scenario.model, training.shape.head_size
    if training.shape.is_llama and within == "attention.query_key_value_weight":
        groups = model.num_query_groups or model.num_attention_heads
        return [heads * size for heads in (model.num_attention_heads, groups, groups)]
    if training.shape.is_llama and within == "mlp.expansion_weight":
        return [model.ffn_hidden_size, model.ffn_hidden_size]
    return []


def file_of(case: Scenario) -> str:
    """Return the name of the file with the weights and results of the undivided model."""
    kind = "experts" if case.model.experts else case.model.normalization
    return f"{kind}, tied={case.model.tied_embeddings}.pt"


def largest_errors(training: TrainingRank, found: Tensors, whole: Tensors) -> Tensors:
    """Return relative differences from the whole model's gradients and loss, by parameter."""
    place, errors = training.place, {}
    for name, value in found.items():
        if name == "loss":
            continue
        expected = own_part(training, name, whole)
        if name == "positions" and place.tensor.sequence_parallel:
            value, expected = (
                each.chunk(place.tensor.size)[place.tensor.rank] for each in (value, expected)
            )
        errors[name] = relative_error(value, expected)
    if training.stage.last:
        errors["loss"] = relative_error(found["loss"], whole["loss"])
    return errors


def run_rank(rank: int, folder: str, cases: list[Scenario]) -> None:
    """Run a gloo rank with every case, and write its errors to one file per rank."""
    torch.set_num_threads(1)
    path = pathlib.Path(folder)
    meeting = (path / "meeting").as_uri()
    size = cases[0].num_gpus
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    errors = []
    for case in cases:
        weights, whole = torch.load(path / file_of(case))
        training = training_of(case, weights)
        errors.append(largest_errors(training, trained(training), whole))
    torch.save(errors, path / f"{rank}.pt")
    dist.destroy_process_group()
