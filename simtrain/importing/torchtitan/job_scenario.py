"""Import a torchtitan job (a TOML file, or a config in Python).

Defaults follow torchtitan's job_config.py. torchtitan always uses sequence parallelism with tensor
parallelism, fused attention, and a gradient reduction in fp32 that overlaps with the backward pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError
from simtrain.importing.draft import Draft
from simtrain.importing.torchtitan.flavors import model_of_flavor, refuse_flavor
from simtrain.importing.torchtitan.job import JobDraft
from simtrain.importing.torchtitan.keys import (
    FILE_SCHEDULES,
    FLOAT8_CONVERTERS,
    SCHEDULES,
)
from simtrain.scenario.pipeline_layout import layout_of_chunks
from simtrain.schedules import NAMED

_ALWAYS = "as torchtitan always does"


def torchtitan_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario with the fields that a job decides.

    Raises:
        InputError: unreadable files; unknown keys, models and schedules; an undefined number of
            ranks; combinations that the framework refuses.
    """
    draft = _Mapping(request)
    draft.set_all()
    return draft


class _Mapping(JobDraft):
    """Sets the fields of a scenario from the keys of a job, section by section."""

    def set_all(self) -> None:
        """Set all fields."""
        self.tensor = self.count("parallelism.tensor_parallel_degree")
        self.pipeline = self.count("parallelism.pipeline_parallel_degree")
        context = self.count("parallelism.context_parallel_degree")
        self.use_gpus(self.tensor * self.pipeline * context)
        self._model()
        self._parallelism()
        self._expert_parallelism()
        self._batch(self._replicas())
        self._groups()
        self._recompute()
        self._software()
        self._precision()
        self.set_because("overlap.data_parallel", True, _ALWAYS)
        self._asynchronous_tensor_parallel()
        self._fp8()
        self.note_effects()

    def _model(self) -> None:
        keys = "model.name", "model.flavor"
        name, flavor = (str(self[key]) for key in keys)
        if (model := model_of_flavor(name, flavor)) is None:
            refuse_flavor(name, flavor, self.setting("model.flavor").place)
        fields, source, notes = model
        for field, value in fields.items():
            self.set_because(f"model.{field}", value, f"{name} {flavor}: {source}")
        for note in notes:
            self.note(f"{name} {flavor}", note)
        if self["model_spec.num_mtp_layers"]:
            self.fill("model_spec.num_mtp_layers")
        self.fill("training.seq_len")

    def _parallelism(self) -> None:
        self.fill("parallelism.tensor_parallel_degree")
        key = "parallelism.enable_sequence_parallel"
        if self.tensor > 1 and self[key]:
            comment = self.origin(key, otherwise=f"{_ALWAYS} with tensor parallelism")
            self.set_because("parallelism.sequence_parallel", True, comment)
        self.fill("parallelism.pipeline_parallel_degree")
        self.set_because("parallelism.scatter_gather", False, _ALWAYS)
        if self.count("parallelism.context_parallel_degree") > 1:
            key = "parallelism.context_parallel_rotate_method"
            self.fill("parallelism.context_parallel_degree", key)
            text = "another order of communication and attention, with fewer kernels"
            self.note(self.setting(key), text)
        if self.pipeline == 1:
            return
        key = "parallelism.pipeline_parallel_schedule"
        name, file_key = str(self[key]).lower(), f"{key}_csv"
        file = str(self[file_key])
        schedule = SCHEDULES.get(name) or (FILE_SCHEDULES.get(name) if file else None)
        if schedule is None:
            raise self.wrong(key, "is not modelled", f"write one of {', '.join(SCHEDULES)}")
        if file:
            self.set("schedule", file, file_key)
            self.set_because("overlap.pipeline", True, "PyTorch's runtime of schedules from files")
        else:
            self.set("schedule", schedule, key)
        if self._split_by_names():
            return
        key = "parallelism.pipeline_parallel_layers_per_stage"
        if NAMED[schedule].has_chunks:
            self.set("parallelism.interleave", self._chunks(key), key)
        self._stage_sizes()

    def _stage_sizes(self) -> None:
        """Set the layers of the first and last stage, which also hold embedding and output layer.

        Source: torchtitan's generate_llm_fqn_per_model_part.
        """
        ends = "first", "last"
        keys = [f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ends]
        less = [self.count(key, least=0) for key in keys]
        chunks = self.data["parallelism"].get("interleave", 1)
        layers, stages = self.data["model"]["num_layers"], self.pipeline * chunks
        share, extra = divmod(layers + sum(less), stages)
        sizes = [share + (stage < extra) for stage in range(stages)]
        sizes[0], sizes[-1] = sizes[0] - less[0], sizes[-1] - less[1]
        if len({*sizes}) == 1:
            return
        if chunks == 1 and len({*sizes[1:-1]}) <= 1 and min(sizes) > 0:
            for end, size, key in zip(ends, (sizes[0], sizes[-1]), keys, strict=True):
                self.set(f"parallelism.{end}_stage_layers", size, key)
        else:
            self._set_layout(chunks_of_sizes(sizes), *keys)

    def _split_by_names(self) -> bool:
        """Set the layout from the names of modules, if the job has them."""
        key = next((key for key in SPLITS if self[key]), None)
        if key is None:
            return False
        read, fix = SPLITS[key]
        chunks = read(self[key], self.data["model"]["num_layers"])
        if not chunks or len(chunks) % self.pipeline:
            raise self.wrong(key, "does not split the model into the stages", fix)
        if ends := ends_of_chunks(chunks) if len(chunks) == self.pipeline else None:
            for end, size in zip(("first", "last"), ends, strict=True):
                self.set(f"parallelism.{end}_stage_layers", size, key)
        else:
            self._set_layout(chunks, key)
        return True

    def _set_layout(self, chunks: Sequence[str], *keys: str) -> None:
        """Set the layout from the letters of each chunk, and the number of chunks per stage."""
        self.set("parallelism.layout", layout_of_chunks(chunks), *keys)
        if (number := len(chunks) // self.pipeline) > 1:
            self.set("parallelism.interleave", number, *keys)

    def _expert_parallelism(self) -> None:
        """Set expert parallelism; torchtitan ignores it without experts."""
        keys = "parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree"
        ranks = self.count(keys[0])
        if "experts" in self.data["model"]:
            self.fill(*keys[: 2 if ranks > 1 else 1])
        if "experts" in self.data["model"] and ranks > 1:
            self.copy("parallelism.expert_parallel_comm_backend")

    def _chunks(self, key: str) -> int:
        """Return the chunks per rank; the default of torchtitan is 2."""
        if not self.given(key):
            return 2
        layers: int = self.data["model"]["num_layers"]
        chunks, rest = divmod(layers, self.pipeline * self.count(key))
        if rest or not chunks:
            fix = f"write a divisor of {layers} / {self.pipeline}"
            raise self.wrong(key, f"does not divide {layers} layers into equal stages", fix)
        return chunks

    def _replicas(self) -> int:
        """Set data parallelism and sharding; return the data-parallel ranks."""
        keys = (
            "parallelism.data_parallel_replicate_degree",
            "parallelism.data_parallel_shard_degree",
        )
        replicate = self.count(keys[0])
        shard = self.count(keys[1], or_rest=True)
        data = self.override("parallelism.data")
        if shard == -1 and data is None:
            raise InputError.of(
                "E872",
                f"{keys[1]} is -1 (all remaining ranks), but the job does not contain the number "
                "of ranks",
                self.setting(keys[1]).place,
                "add --gpus 128, the number of GPUs, or --set parallelism.data=16",
            )
        if shard == -1 and data is not None:
            shard = max(1, data // replicate)
        data = data or replicate * shard
        self.set("parallelism.data", data, *keys)
        stage = 3 if shard > 1 else 0
        self.set("memory.zero_stage", stage, keys[1])
        if replicate > 1 and shard > 1:
            self.set("memory.shard_over", shard, keys[1])
        if stage == 3:
            self._resharding()
        return data

    def _resharding(self) -> None:
        """Set resharding and the gradient reduction, which depend on the pipeline."""
        key = "parallelism.fsdp_reshard_after_forward"
        stays = {"default": self.pipeline > 1, "always": False, "never": True}
        if stays[self.choice(key, "is not a policy")]:
            self.set("memory.reshard_after_forward", False, key)
        if self.pipeline > 1:
            text = f"{_ALWAYS} in a pipeline"
            self.set_because("memory.reduce_every_microbatch", False, text)

    def _batch(self, data: int) -> None:
        older, newer = "training.batch_size", "training.local_batch_size"
        local_key = older if self.given(older) else newer
        local = self.count(local_key)
        if self.pipeline > 1:
            self.fill("parallelism.pipeline_parallel_microbatch_size")
        else:
            self.set("batch.micro", local, local_key)
        total = self.count("training.global_batch_size", or_rest=True)
        if total == -1:
            detail = f"{local} x {data} data-parallel ranks"
            self.set("batch.global", local * data, local_key, detail=detail)
        else:
            self.set("batch.global", total, "training.global_batch_size")

    def _groups(self) -> None:
        """Set the microbatches of a group, unless they are as many as stages.

        Source: torch's `ScheduleInterleaved1F1B`, which cuts microbatches into equal rounds.
        """
        name, batch = self.data.get("schedule", ""), self.data["batch"]
        if name not in NAMED or not NAMED[name].chooses_groups:
            return
        per_replica = batch["global"] // (batch["micro"] * self.data["parallelism"]["data"])
        size = per_replica // max(1, per_replica // self.pipeline)
        if size > self.pipeline:
            text = "PyTorch's rounds of equally many microbatches"
            self.set_because("parallelism.microbatch_group_size", size, text)

    def _recompute(self) -> None:
        keys = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
        if self[keys[0]] == "memory_budget":
            self.set_because("recompute.strategy", "none", "memory_budget is not modelled")
            text = "the compiler recomputes within a budget: less memory"
            self.note(self.setting(keys[0]), text)
            return
        mode, option = self.choice(keys[0]), self[keys[1]]
        if mode != "selective":
            self.set("recompute.strategy", mode, keys[0])
            return
        if option == "op":
            detail = "saves every second product, attention and reduce-scatters"
            self.set("recompute.strategy", "ops", *keys, detail=detail)
            return
        if not str(option).isdecimal() or int(option) == 0:
            raise self.wrong(keys[1], "is no option of selective checkpointing", "write op, or 2")
        every = int(option)
        layers: int = self.data["model"]["num_layers"]
        chunks = self.pipeline * self.data["parallelism"].get("interleave", 1)
        self.set("recompute.strategy", "full", *keys)
        if every > 1:
            self.set("recompute.method", "block", *keys)
            number, detail = max(1, layers // chunks // every), f"one layer in {every} per chunk"
            self.set("recompute.num_layers", number, *keys, detail=detail)

    def _software(self) -> None:
        """Set the software stack: compiled layers, a compiled loss, and CUDA graphs."""
        keys = [key for key in ("training.compile", "compile.enable") if self[key]]
        components = self["compile.components"]
        if not isinstance(components, list):
            raise self.wrong("compile.components", "must be a list", 'write ["model", "loss"]')
        self.compile_keys = keys if "model" in components else []
        stack = "torchtitan_compiled" if self.compile_keys else "torchtitan"
        self.set("software.stack", stack, *keys)
        has_compiled_loss = bool(keys) and "loss" in components
        if has_compiled_loss != bool(self.compile_keys):
            name = "compile.components"
            self.set("software.fused_cross_entropy", has_compiled_loss, name)
        key = "training.disable_cuda_graphs"
        if not self[key] and (self.given(key) or self.given("training.uses_cuda_graphs")):
            self.set(
                "software.cuda_graphs", True, key, otherwise="default of torchtitan since 2026"
            )

    def _precision(self) -> None:
        key = "training.mixed_precision_param"
        if self[key] == "bfloat16":
            self.set("precision.compute", "bf16", key)
        else:
            self.set_because("precision.compute", "bf16", f"{self[key]} of the job is not modelled")
            self.note(self.setting(key), "slower products and twice the bytes")
        self.set_because("precision.gradients", "fp32", _ALWAYS)

    def _fp8(self) -> None:
        """Set fp8 if torchao's converter is modelled; note what is not."""
        key, data = "model.converters", self.data
        values = self[key].split(",") if isinstance(self[key], str) else self[key]
        if not isinstance(values, list):
            raise self.wrong(key, "must be a list", 'write ["float8"] or []')
        names = [str(name) for name in values if name]
        if adapters := [name for name in names if "lora" in name.lower()]:
            text = "only adapters are trained: less memory; the scenario trains all weights"
            self.note(f"{key} {', '.join(adapters)}", text, self.place(key))
        names = [name for name in names if name not in adapters]
        if not names:
            return
        recipe = self._float8_key("recipe_name")
        reasons = {
            f"{', '.join(names)} is not torchao's float8": not {*names} <= {*FLOAT8_CONVERTERS},
            f"the recipe is {self[recipe]}": self[recipe] not in (None, "tensorwise"),
            "the model is not compiled": not self.compile_keys,
            "ranks do not shard sequences": self.tensor > 1
            and "sequence_parallel" not in data["parallelism"],
            "the model has experts": "experts" in data["model"],
            "the model has latent attention": "latent_attention" in data["model"],
        }
        if broken := next((reason for reason, is_so in reasons.items() if is_so), None):
            text = f"faster products in 8 bits; the scenario has 16 bits, because {broken}"
            self.note(f"{key} {', '.join(names)}", text, self.place(key))
            return
        self.set("precision.compute", "fp8", key)
        self.set("precision.fp8_recipe", "tensorwise", recipe)
        gathers = self._float8_key("enable_fsdp_float8_all_gather")
        if data["memory"]["zero_stage"] == 3 and self[gathers]:
            self.set("precision.fp8_parameters", True, gathers)
            scales = self._float8_key("precompute_float8_dynamic_scale_for_fsdp")
            if not self[scales]:
                text = "a separate collective for the scale of each weight: more small collectives"
                self.note(scales, text, self.place(scales))
        filtered = self._float8_key("filter_fqns")
        if "output" not in str(self[filtered]):
            text = "the output layer also computes in 8 bits; the scenario has 16 bits"
            self.note(filtered, text, self.place(filtered))

    def _float8_key(self, name: str) -> str:
        """Return the key of an option of torchao's float8, in the section of either name."""
        keys = [f"{section}.{name}" for section in FLOAT8_CONVERTERS]
        return next((key for key in keys if self.given(key)), keys[0])

    def _asynchronous_tensor_parallel(self) -> None:
        key = "parallelism.enable_async_tensor_parallel"
        value = self[key]
        if type(value) is not bool:
            raise self.wrong(key, "must be true or false", "write true or false")
        if value and self.tensor > 1:
            self.set("overlap.tensor_parallel", True, key)
            self.set("overlap.userbuffers", True, key)
            text = (
                "the scenario has the chunks, order and buffers of Transformer Engine's userbuffers"
            )
            self.note(key, text, self.place(key))


_LAYER = re.compile(r"layers\.(\d{1,6})")

_MODULES = {"E": ["tok_embeddings"], "L": ["norm", "output"], "m": ["mtp_layers.0"]}


def chunks_of_sizes(sizes: Sequence[int]) -> list[str]:
    """Return the letters of chunks with these numbers of layers, with embedding and output."""
    chunks = ["t" * size for size in sizes]
    chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
    return chunks


def ends_of_chunks(chunks: Sequence[str]) -> tuple[int, int] | None:
    """Return the layers of the first and last chunk, if all others have equally many."""
    sizes = [chunk.count("t") for chunk in chunks]
    is_plain = [*chunks] == chunks_of_sizes(sizes) and min(sizes) > 0
    return (sizes[0], sizes[-1]) if is_plain and len({*sizes[1:-1]}) <= 1 else None


def modules_of_chunks(chunks: Sequence[str]) -> list[list[str]]:
    """Return the names of the modules of chunks with these letters."""
    modules, layer = list[list[str]](), 0
    for letters in chunks:
        names: list[str] = []
        for letter in letters:
            names += [f"layers.{layer}"] if letter == "t" else _MODULES[letter]
            layer += letter == "t"
        modules.append(names)
    return modules


def _chunks_between(points: Any, num_layers: int) -> list[str]:
    """Return the chunks that begin with these layers, after a first one; none if out of order."""
    matches = [_LAYER.fullmatch(str(name)) for name in points] if isinstance(points, list) else []
    starts = [int(match[1]) for match in matches if match]
    sizes = [end - start for start, end in pairwise([0, *starts, num_layers])]
    return chunks_of_sizes(sizes) if matches and all(matches) and min(sizes[1:]) > 0 else []


def _chunks_of_modules(parts: Any, num_layers: int) -> list[str]:
    """Return the chunks with modules of these names; none if they are not the model's."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return []
    text = "|".join(",".join(map(str, part)) for part in parts)
    in_order = _LAYER.findall(text) == [*map(str, range(num_layers))]
    text = _LAYER.sub("t", text).replace("tok_embeddings", "E").replace("norm,output", "L")
    are_known = re.fullmatch(r"[EtL]([,|][EtL])*", text)
    return text.replace(",", "").split("|") if in_order and are_known else []


SPLITS: dict[str, tuple[Callable[[Any, int], list[str]], str]] = {
    "parallelism.module_fqns_per_model_part": (
        _chunks_of_modules,
        "write the names of each stage: tok_embeddings, layers.0 and so on, norm, output",
    ),
    "parallelism.pipeline_parallel_split_points": (
        _chunks_between,
        "write layers in order, such as layers.4: the first of each stage but stage 0",
    ),
}
"""For each key that splits a model, its reader, given the number of layers, and a remedy."""
