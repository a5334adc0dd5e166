"""Write a scenario as the job file (TOML) of torchtitan, whose keys are those of the import."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError, Problem
from simtrain.importing.lost_fields import comments_of, lost_fields, refuse_own_parts
from simtrain.importing.torchtitan.reader import (
    FLAVORS,
    MAPPED,
    REMEDIES,
    flavor_of_model,
    modules_of_chunks,
    torchtitan_draft,
)
from simtrain.scenario import Scenario
from simtrain.scenario.parallelism import chunks_of_layout

_OF_LAYOUT = ("model", "parallelism", "batch", "schedule", "recompute", "precision")
"""Sections that are the layout; what torchtitan cannot say of them is an error."""
_OF_SHARDING = ("memory.zero_stage", "memory.shard_over", "memory.reshard_after_forward")
_Pairs = Iterator[tuple[str, Any]]


def torchtitan_job(scenario: Scenario, *, nearest: bool = False) -> str:
    """Return the text of a job, with comments on the fields that it cannot say.

    Args:
        scenario: the scenario.
        nearest: whether to write the nearest layout that torchtitan has. The comments name each
            field of the layout that changes.

    Raises:
        InputError: torchtitan cannot run the layout of the scenario (E882), or its model.
    """
    refuse_own_parts(scenario, "torchtitan")
    body = _toml(dict(_keys(_nearest(scenario) if nearest else scenario)))
    lost = lost_fields(scenario, _imported(body, scenario))
    refused = [sentence for sentence in lost if _is_of_layout(sentence, scenario)]
    if refused and not nearest:
        raise InputError([_refusal(sentence) for sentence in refused])
    name = f" of {scenario.name}" if scenario.name else ""
    first = f"# A job of torchtitan with the layout{name}: replace the data and the tokenizer."
    lost = [sentence for sentence in lost if sentence not in refused]
    comments = [
        *(["# Changed to the nearest layout that jobs of torchtitan have:"] if refused else []),
        *(f"# - {sentence}" for sentence in refused),
        *comments_of(lost, "Jobs of torchtitan"),
    ]
    return "\n".join([first, *comments, body])


def _nearest(scenario: Scenario) -> Scenario:
    """Return a scenario whose sharding and schedule torchtitan has; other fields follow the import.

    FSDP2 is torchtitan's only sharding. If it gathers parameters once for an iteration
    (reshard_after_forward: never), it communicates most like ZeRO 1 and 2.
    """
    changes: dict[str, Any] = {}
    if scenario.memory.zero_stage in (1, 2):
        reshards = scenario.parallelism.pipeline == 1
        changes |= {"memory.zero_stage": 3, "memory.reshard_after_forward": reshards}
    if scenario.schedule_file is None and not scenario.schedule_family.torch_names:
        changes["schedule"] = "interleaved" if scenario.parallelism.interleave > 1 else "1f1b"
    return scenario.replace(changes) if changes else scenario


def _imported(body: str, scenario: Scenario) -> Scenario:
    """Import the text of a job."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.toml"
        file.write_text(body, "utf-8")
        request = ImportRequest(file, overrides=[f"cluster={scenario.cluster}"])
        return torchtitan_draft(request).finished()[0]


def _is_of_layout(sentence: str, scenario: Scenario) -> bool:
    field = sentence.partition(":")[0]
    shards = scenario.parallelism.data * scenario.parallelism.context > 1
    return field.partition(".")[0] in _OF_LAYOUT or (shards and field in _OF_SHARDING)


def _refusal(sentence: str) -> Problem:
    field, _, values = sentence.partition(": ")
    value, _, imported = values.partition(", after an import ")
    message = f"{field} is {value}: jobs of torchtitan cannot say this"
    fix = REMEDIES.get(field, f"--set {field}={'null' if imported == 'None' else imported}")
    fix = f"add {fix}; or write the nearest job with --nearest"
    return Problem("E882", message, reason=f"a job gives {imported}", fix=fix)


def _keys(scenario: Scenario) -> _Pairs:
    """Yield the keys of the job."""
    flavor = flavor_of_model(scenario.model)
    if flavor is None:
        message = "the model is none of torchtitan's flavors"
        raise InputError.of("E882", message, fix=f"write one of {FLAVORS}, or export megatron")
    yield from zip(("model.name", "model.flavor"), flavor, strict=True)
    for write in (_batch, _data, _inside, _pipeline, _recompute, _precision, _software):
        yield from write(scenario)


def _batch(scenario: Scenario) -> _Pairs:
    batch, data = scenario.batch, scenario.parallelism.data
    in_pipeline = scenario.parallelism.pipeline > 1
    local = batch.global_ // data if in_pipeline else batch.micro
    yield "training.local_batch_size", local
    yield "training.global_batch_size", batch.global_
    yield "training.seq_len", scenario.model.seq_length
    if in_pipeline:
        yield "parallelism.pipeline_parallel_microbatch_size", batch.micro


def _data(scenario: Scenario) -> _Pairs:
    data, memory = scenario.parallelism.data, scenario.memory
    is_sharded = memory.zero_stage == 3
    shard = (memory.shard_over or data) if is_sharded else 1
    yield "parallelism.data_parallel_replicate_degree", data // shard
    yield "parallelism.data_parallel_shard_degree", shard
    if is_sharded:
        policies = {True: "always", False: "never"}
        reshards = memory.reshard_after_forward
        policy = policies[reshards] if isinstance(reshards, bool) else "default"
        yield "parallelism.fsdp_reshard_after_forward", policy


def _inside(scenario: Scenario) -> _Pairs:
    split = scenario.parallelism
    yield "parallelism.tensor_parallel_degree", split.tensor
    if split.tensor > 1:
        if not split.sequence_parallel:
            yield "parallelism.enable_sequence_parallel", False
        if scenario.overlap.userbuffers:
            yield "parallelism.enable_async_tensor_parallel", True
    if split.context > 1:
        key = "parallelism.context_parallel_rotate_method"
        yield "parallelism.context_parallel_degree", split.context
        methods = {ours: theirs for theirs, ours in MAPPED[key].values.items()}
        yield key, methods.get(split.context_communication, "allgather")
    if split.expert > 1:
        yield "parallelism.expert_parallel_degree", split.expert
        yield "parallelism.expert_tensor_parallel_degree", split.expert_tensor or split.tensor


def _pipeline(scenario: Scenario) -> _Pairs:
    split, prefix = scenario.parallelism, "parallelism.pipeline_parallel"
    if split.pipeline == 1:
        return
    yield f"{prefix}_degree", split.pipeline
    if str(scenario.schedule).endswith(".csv"):
        kind = "Multi" if split.interleave > 1 else "Single"
        yield f"{prefix}_schedule", f"PipelineSchedule{kind}"
        yield f"{prefix}_schedule_csv", scenario.schedule
    else:
        names = scenario.schedule_family.torch_names
        if not names:
            message = f"schedule is {scenario.schedule}: PyTorch's pipelining has no such schedule"
            fix = "add --nearest, --set schedule=1f1b, or a schedule of PyTorch"
            raise InputError.of("E882", message, fix=fix)
        yield f"{prefix}_schedule", names[0]
    if split.layout is not None:
        chunks = modules_of_chunks(chunks_of_layout(split.layout))
        if [] in chunks:
            message, fix = "parallelism.layout has a stage without modules", "give it a layer"
            raise InputError.of("E882", message, fix=fix)
        yield "parallelism.module_fqns_per_model_part", chunks
        return
    layers, ends = scenario.model.num_layers, (split.first_stage_layers, split.last_stage_layers)
    if split.interleave > 1:
        yield f"{prefix}_layers_per_stage", layers // (split.pipeline * split.interleave)
    middle = _layers_of_middle(scenario)
    if all(middle >= (size or middle) for size in ends):
        for end, size in zip(("first", "last"), ends, strict=True):
            yield f"{prefix}_{end}_stage_less_layers", middle - (size or middle)
        return
    first, last = (size or middle for size in ends)
    sizes = [first, *[middle] * (split.pipeline - 2), last]
    letters = ["t" * size for size in sizes]
    letters[0], letters[-1] = f"E{letters[0]}", f"{letters[-1]}L"
    yield "parallelism.module_fqns_per_model_part", modules_of_chunks(letters)


def _layers_of_middle(scenario: Scenario) -> int:
    """Return the layers of a chunk that is neither the first nor the last."""
    split, layers = scenario.parallelism, scenario.model.num_layers
    ends = [size for size in (split.first_stage_layers, split.last_stage_layers) if size]
    others = split.pipeline * split.interleave - len(ends)
    return (layers - sum(ends)) // others if others else max(ends)


def _recompute(scenario: Scenario) -> _Pairs:
    recompute, split = scenario.recompute, scenario.parallelism
    mode = "full" if recompute.strategy == "full" else "none"
    if recompute.strategy == "ops":
        yield "activation_checkpoint.mode", "selective"
        yield "activation_checkpoint.selective_ac_option", "op"
    elif mode == "full" and recompute.method == "block":
        layers = scenario.model.num_layers // (split.pipeline * split.interleave)
        yield "activation_checkpoint.mode", "selective"
        yield "activation_checkpoint.selective_ac_option", str(layers // recompute.num_layers)
    else:
        yield "activation_checkpoint.mode", mode


def _precision(scenario: Scenario) -> _Pairs:
    precision = scenario.precision
    if precision.compute == "fp8":
        yield "model.converters", ["float8"]
        yield "float8.recipe_name", precision.fp8_recipe
        yield "float8.enable_fsdp_float8_all_gather", precision.fp8_parameters
        yield "float8.precompute_float8_dynamic_scale_for_fsdp", precision.fp8_parameters
        yield "float8.filter_fqns", ["output"]


def _software(scenario: Scenario) -> _Pairs:
    kernels = scenario.facts.kernels
    if scenario.software.stack == "torchtitan_compiled":
        yield "compile.enable", True
    elif scenario.software.stack == "torchtitan" and kernels.fused_cross_entropy:
        yield "compile.enable", True
        yield "compile.components", ["loss"]
    if scenario.facts.cuda_graphs:
        yield "training.disable_cuda_graphs", False


def _toml(keys: dict[str, Any]) -> str:
    """Return keys as TOML, section by section."""
    sections: dict[str, list[str]] = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {_value(value)}")
    return "\n".join(
        f"[{section}]\n" + "".join(f"{line}\n" for line in lines)
        for section, lines in sections.items()
    )


def _value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)
