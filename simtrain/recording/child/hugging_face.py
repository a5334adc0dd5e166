"""A program for a model of Hugging Face transformers that is known by its config alone.

The class is that of the config (`architectures`), or the one for its type without a head. The batch
has what the model's forward pass reads first: tokens, pixels or a spectrogram.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from simtrain.base.input_file import read_text
from simtrain.errors import InputError
from simtrain.recording.child.problems import WrongProgram

_NAMES_CODE = {"auto_map"}
"""Keys of configs that name code of their own, which a recording does without."""
_PIXELS, _SPECTROGRAM, _WAVE = "pixel_values", "input_features", "input_values"
_OF_NUMBERS, _TOKENS = {_PIXELS, _SPECTROGRAM, _WAVE}, "input_ids"
_SAMPLES_PER_S, _SAMPLES_PER_LETTER = 16_000, 1_000
"""Of speech, as Wav2Vec2 and HuBERT read it. 1,000 are a letter, for 16 a second."""


def train(
    config: str,
    sequences: int = 1,
    tokens: int | None = None,
    fsdp: bool = False,
    tensor: int = 1,
    experts: int = 1,
) -> tuple[Any, ...]:
    """Return a model with random weights, a batch, its loss, and AdamW.

    Args:
        config: path of config.json.
        sequences: sequences, images or recordings of a rank's batch.
        tokens: tokens of a sequence, by default the model's longest, at most 4096; samples of
            speech, by default those of 10 s.
        fsdp: shard parameters over the ranks with batches of their own, with fully_shard; weights
            are then in fp32, and products in bf16. Otherwise weights are in bf16.
        tensor: ranks that share each layer, by the model's own plan.
        experts: ranks that have different experts, by the model's own plan.
    """
    settings = _settings(Path(config))
    model = _model(settings)
    model.train()
    batch = _batch(model, settings, sequences, tokens)
    world = dist.get_world_size()
    if world % tensor:
        raise WrongProgram(f"{world} ranks are no multiple of {tensor} tensor-parallel ranks")
    if world > tensor and not fsdp:
        raise WrongProgram(f"{world // tensor} ranks would train a model each: add --fsdp")
    if not fsdp:
        model.to(torch.bfloat16)
        batch = {
            name: value.to(torch.bfloat16) if name in _OF_NUMBERS else value
            for name, value in batch.items()
        }
    if tensor > 1 or experts > 1:
        mesh = _divide(model, tensor, experts)
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    if fsdp and experts == 1:
        _shard(model, mesh)
    # One kernel of the optimizer takes parameters of one mesh.
    meshes: dict[Any, list[Any]] = {}
    for each in model.parameters():
        meshes.setdefault(getattr(each, "device_mesh", None), []).append(each)
    groups = [{"params": each} for each in meshes.values()]
    return model, batch, _loss, torch.optim.AdamW(groups, fused=True)


def _settings(file: Path) -> Any:
    """Read a config, of which nothing is run, loaded or fetched."""
    try:
        data = json.loads(read_text(file), object_hook=_decoded)
        for name in _NAMES_CODE & {*data}:
            del data[name]
        for name, value in data.items():
            if name.endswith("implementation") and isinstance(value, str) and "/" in value:
                raise ValueError(f"{name} names a kernel to fetch: {value:.80}")
        settings = transformers.AutoConfig.for_model(**data)
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongProgram(f"it is no config of transformers: {error}") from None
    settings.use_cache = False
    # Which layers and which parts of the input are left out, chance decides at each step.
    settings.apply_spec_augment = False
    for name in vars(settings):
        if name.endswith("layerdrop"):
            setattr(settings, name, 0.0)
    return settings


def _decoded(data: dict[str, Any]) -> Any:
    """Read {"__float__": "Infinity"}, as transformers writes what JSON has no word for."""
    number = data.get("__float__")
    return float(number) if len(data) == 1 and isinstance(number, str) else data


def _model(settings: Any) -> Any:
    """Build the model of a config."""
    for name in getattr(settings, "architectures", None) or ():
        kind = getattr(transformers, name, None) if isinstance(name, str) else None
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            raise WrongProgram(f"architectures has {name!r:.80}, no model class of transformers")
        return kind(settings)
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        if type(settings) in auto._model_mapping:
            return auto.from_config(settings)
    raise WrongProgram(f"transformers {transformers.__version__} has no model of this config")


def _batch(model: Any, settings: Any, sequences: int, tokens: int | None) -> dict[str, Any]:
    """Return what a forward pass reads."""
    text = settings.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or 4096
    length = tokens or min(longest, 4096)
    first, arguments = model.main_input_name, {*inspect.signature(model.forward).parameters}
    batch: dict[str, Any] = {}
    if first == _SPECTROGRAM:
        frames = 2 * getattr(settings, "max_source_positions", 1500)
        batch[_SPECTROGRAM] = torch.zeros(sequences, settings.num_mel_bins, frames)
        length = tokens or getattr(settings, "max_target_positions", 448)
    elif first == _WAVE:
        batch[_WAVE] = torch.zeros(sequences, tokens or 10 * _SAMPLES_PER_S)
        length = min(longest, max(1, batch[_WAVE].shape[1] // _SAMPLES_PER_LETTER))
    elif first != _PIXELS:
        batch[_TOKENS] = torch.zeros(sequences, length, dtype=torch.long)
    is_dual = {_PIXELS, "return_loss"} <= arguments  # one encoder of images and one of text
    if first == _PIXELS or is_dual:
        of_images = getattr(settings, "vision_config", settings)
        size = getattr(of_images, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(of_images, "num_channels", 3)
        batch[_PIXELS] = torch.zeros(sequences, channels, height, width)
    if is_dual:
        return batch | {"return_loss": True}
    if first == _PIXELS:
        if getattr(settings, "num_labels", 0) and "Classification" in type(model).__name__:
            batch["labels"] = torch.zeros(sequences, dtype=torch.long)
        return batch
    if settings.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.zeros(sequences, length, dtype=torch.long)
    has_head = hasattr(model, "loss_function") and model.get_output_embeddings() is not None
    if has_head or type(model).__name__.endswith("ForCTC"):
        batch["labels"] = torch.zeros(sequences, length, dtype=torch.long)
    return batch


def _loss(model: Any, batch: dict[str, Any]) -> Any:
    """Return the model's own loss, or the mean of its first output."""
    output = model(**batch)
    value = getattr(output, "loss", None)
    if value is None:
        value = next(each for each in output.to_tuple() if isinstance(each, torch.Tensor)).mean()
    return value


def _divide(model: Any, tensor: int, experts: int) -> Any:
    """Divide a model over ranks with transformers' own code, by its plans for the model.

    With experts on ranks of their own, transformers shards the model too.

    Returns:
        The mesh of ranks with batches of their own.

    Raises:
        WrongProgram: the model has no plan, or the plan does not fit these numbers.
    """
    for ranks, plan, name in (
        (tensor, model.tp_plan, "tensor"),
        (experts, getattr(model, "ep_plan", None), "expert"),
    ):
        if ranks > 1 and not plan:
            raise WrongProgram(f"{type(model).__name__} has no plan for {name} parallelism")
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
        from transformers.distributed.utils import TransformersDeviceMesh
    except ImportError:
        message = f"transformers {transformers.__version__} cannot divide models: 5.24 can"
        raise WrongProgram(message) from None
    data = dist.get_world_size() // tensor
    try:
        config = DistributedConfig(
            tp_size=tensor, fsdp_size=data, ep_size=experts, fsdp_mixed_precision=True
        )
        of_experts = config.efsdp_size, experts
        # Meshes as transformers makes them, without the accelerator that it looks for.
        dense, expert = (
            init_device_mesh("cpu", (1, 1, *sizes), mesh_dim_names=("pp", "dp_replicate", *names))
            for sizes, names in (((data, tensor), ("fsdp", "tp")), (of_experts, ("efsdp", "ep")))
        )
        if experts == 1:
            config.fsdp_size = 1
        meshes = TransformersDeviceMesh(dense, expert)
        type(model).maybe_distribute_model(model, config, meshes)
    except ValueError as error:
        raise WrongProgram(f"transformers cannot divide it: {error}") from None
    return meshes.get_mesh("fsdp")


def _shard(model: Any, mesh: Any) -> None:
    """Shard each layer that transformers keeps whole, and the rest, with fully_shard.

    Layers with tied weights, such as an embedding's, are left to the rest.
    """
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    kept_whole = {*(model._no_split_modules or ())}
    uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    for module in [*model.modules()]:
        is_tied = any(uses[id(each)] > 1 for each in module.parameters())
        if type(module).__name__ in kept_whole and not is_tied:
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
