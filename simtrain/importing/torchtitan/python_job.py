"""Read the keys of a torchtitan job from a Python file whose functions return configs.

Source: models/*/config_registry.py and trainer.py of pytorch/torchtitan (2026).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simtrain.importing.python_config import Built, PythonSource, Unknown, unknown_in
from simtrain.importing.settings import Setting
from simtrain.importing.torchtitan.flavors import NAMES

_SECTIONS = {"training", "parallelism", "model_spec", "model"}
"""Fields of a config; an object without any is no config."""
_POLICIES = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
"""The mode of activation checkpointing of each policy."""
_CONVERTERS = {"Float8LinearConverter": "float8", "MXFP8LinearConverter": "mx"}
"""The name in a TOML file of each converter."""
_MOVED = {"compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel"}

_Pair = tuple[str, Any, ast.AST]


def python_settings(text: str, file: str, config: str | None = None) -> dict[str, Setting]:
    """Return the keys of a config as `section.key`.

    Args:
        text: the Python file.
        file: its path, whose folder names the model.
        config: the function that returns the config; by default the only one.

    Raises:
        InputError: the syntax is wrong, or the file has no such config or several.
    """
    source = PythonSource(text, file)
    name, job = source.config(config, _is_job)
    settings: dict[str, Setting] = {}
    for key, value, node in _pairs(job, name, file):
        key = _MOVED.get(key, key)
        unknown = unknown_in(value)
        place = source.place(node)
        reason = unknown.reason if unknown else ""
        cause = unknown.text if unknown else None
        settings[key] = Setting(key, key, None if unknown else value, place, cause, reason)
    return settings


def _is_job(value: Built) -> bool:
    return value.is_object and bool(_SECTIONS & value.fields.keys())


def _pairs(job: Built, name: str, file: str) -> Iterator[_Pair]:
    """Yield the key, value and expression of each field of a job."""
    for path, value, node in job.leaves():
        if path[0] in _OBJECTS:
            continue
        if not isinstance(value, Built):
            yield ".".join(path), value, node
        elif not value.is_object and len(path) == 1:
            yield ".".join(path), unknown_in(value), node
    for path, node in job.all_changes():
        yield ".".join(path), "called", node
    for key, read in _OBJECTS.items():
        if isinstance(value := job.fields.get(key), Built):
            yield from read(value, name, file)
        elif key in job.fields:
            yield from _plain(key, job.fields[key], job.places[key])
    if "selective_ac_option" not in _fields(job, "activation_checkpoint"):
        # Configs in Python are newer than the choice of every nth layer.
        yield "activation_checkpoint.selective_ac_option", "op", job.node


def _fields(job: Built, key: str) -> dict[str, Any]:
    value = job.fields.get(key)
    return value.fields if isinstance(value, Built) else {}


def _plain(key: str, value: Any, node: ast.AST) -> Iterator[_Pair]:
    """Yield what a field without an object means: activation_checkpoint=None is no recompute."""
    if key == "activation_checkpoint" and value is None:
        yield "activation_checkpoint.mode", "none", node
    elif value is not None:
        yield key, value, node


def _section(key: str) -> Callable[[Built, str, str], Iterator[_Pair]]:
    def read(value: Built, name: str, file: str) -> Iterator[_Pair]:
        for path, inner, node in value.leaves((key,)):
            if not isinstance(inner, Built):
                yield ".".join(path), inner, node

    return read


def _checkpoint(value: Built, name: str, file: str) -> Iterator[_Pair]:
    yield from _section("activation_checkpoint")(value, name, file)
    last = value.symbol.last
    if mode := _POLICIES.get(last):
        yield "activation_checkpoint.mode", mode, value.node
        # These policies came with CUDA graphs of the whole step.
        yield "training.uses_cuda_graphs", True, value.node
    elif last != "ActivationCheckpointConfig":
        yield "activation_checkpoint.mode", last, value.node


def _optimizer(value: Built, name: str, file: str) -> Iterator[_Pair]:
    yield from _section("optimizer")(value, name, file)
    if value.symbol.last == "OptimizersInBackwardContainer":
        yield "optimizer.early_step_in_backward", True, value.node
    elif value.symbol.last not in ("OptimizersContainer", "default_adamw"):
        yield "optimizer.name", value.symbol.last, value.node


def _loss(value: Built, name: str, file: str) -> Iterator[_Pair]:
    yield "loss", value.symbol.last, value.node


def _converters(value: Built, name: str, file: str) -> Iterator[_Pair]:
    yield from _listed(value.fields.get("converters", []), value.node)


def _listed(converters: Any, node: ast.AST) -> Iterator[_Pair]:
    """Yield the names of converters, and the options of torchao's float8."""
    if not isinstance(converters, list) or not all(isinstance(each, Built) for each in converters):
        lost = unknown_in(converters) or Unknown("converters", "no list of converters")
        yield "model.converters", lost, node
        return
    names = [
        _CONVERTERS.get(each.symbol.last, each.symbol.last.removesuffix("Converter"))
        for each in converters
    ]
    if names:
        yield "model.converters", names, node
    for each, converter in zip(converters, names, strict=True):
        if converter == "float8":
            for field, value in each.fields.items():
                yield f"float8.{field}", value, each.places[field]


def _model(value: Built, name: str, file: str) -> Iterator[_Pair]:
    """Yield the name and flavor of model_registry("8B", ...) or Model(name=..., flavor=...)."""
    if not value.symbol.name.endswith("model_registry"):
        yield from _section("model")(value, name, file)
        return
    fields = dict(value.fields)
    flavor = value.positional[0] if value.positional else fields.pop("flavor", "debugmodel")
    yield "model.flavor", flavor, value.node
    yield "model.name", _name_of_model(value.symbol.name, name, file), value.node
    if (converters := fields.pop("converters", None)) is not None:
        yield from _listed(converters, value.places["converters"])
    for field, inner in fields.items():
        yield f"model_spec.{field}", inner, value.places[field]


def _name_of_model(registry: str, config: str, file: str) -> str:
    """Return the model of a registry: its module, the file's folder, or the config's name."""
    folder = Path(file).resolve().parent.name
    modules = [word for word in registry.split(".")[:-1] if word in NAMES]
    starts = [name for name in NAMES if config.startswith(f"{name}_")]
    return [folder, *starts, *modules][-1] if folder not in NAMES or modules else folder


_OBJECTS: dict[str, Callable[[Built, str, str], Iterator[_Pair]]] = {
    "activation_checkpoint": _checkpoint,
    "optimizer": _optimizer,
    "loss": _loss,
    "model_converters": _converters,
    "model_spec": _model,
    "model": _model,
}
"""Fields whose object's class has a meaning."""
