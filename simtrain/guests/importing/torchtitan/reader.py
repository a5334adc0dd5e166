"""Import a torchtitan job, a TOML file.

Defaults follow torchtitan's job_config.py. torchtitan always uses sequence parallelism with tensor
parallelism, fused attention, and a gradient reduction in fp32 that overlaps with the backward pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from simtrain.base.importer import ImportRequest, text_of_kind
from simtrain.base.strict_yaml import as_scalar
from simtrain.base.values import replace
from simtrain.errors import InputError, Location
from simtrain.guests.importing.draft import Draft
from simtrain.guests.importing.kinds import KINDS
from simtrain.guests.importing.settings import Setting, toml_settings
from simtrain.guests.importing.table import WordsFile
from simtrain.scenario import shipped_models as models
from simtrain.scenario.dispatchers import DEFAULT, DISPATCHERS
from simtrain.scenario.parallelism import layout_of_chunks
from simtrain.schedules import NAMED

_FILE = WordsFile(Path(__file__).with_name("keys.toml"))
MAPPED = _FILE.words("fields")
"""The keys that set fields."""
_BACKEND = "parallelism.expert_parallel_comm_backend"
MAPPED[_BACKEND] = replace(
    MAPPED[_BACKEND],
    default=DEFAULT.torchtitan,
    values={each.torchtitan: name for name, each in DISPATCHERS.items() if each.torchtitan},
)
TABLE = _FILE.table(mapped=MAPPED)
_ALWAYS = "as torchtitan always does"
_SCHEDULES = {name: ours for ours, family in NAMED.items() for name in family.torch_names}
"""Our names of PyTorch's pipeline schedules, by lower-case name."""

_FLAVORS: dict[str, dict[str, str]] = _FILE.section("flavors")
"""The scenario with the model of each flavor, by name and flavor."""
_MISSING: dict[str, str] = _FILE.section("missing")


def _refuse_flavor(name: str, flavor: str, place: Location | None) -> NoReturn:
    names = ", ".join(f"{model} {size}" for model in _FLAVORS for size in _FLAVORS[model])
    raise InputError.of(
        "E877",
        f"the flavor {flavor} of {name} cannot be imported"
        + (f": simtrain has no {_MISSING[name]}" if name in _MISSING else ""),
        place,
        f"write one of {names}; or import the model with simtrain import config.json",
        "simtrain has the sizes of some flavors only",
    )


# ------------------------------------------------------------------------------------------ fields


def torchtitan_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario with the fields that a job decides.

    Raises:
        InputError: unreadable files; unknown keys, models and schedules; an undefined number of
            ranks; combinations that the framework refuses.
    """
    draft = JobDraft(request)
    draft.set_all()
    return draft


class JobDraft(Draft):
    """A scenario during its import from a job, whose settings are `section.key`."""

    def __init__(self, request: ImportRequest) -> None:
        file = request.file
        super().__init__(
            request,
            what=f"torchtitan's job in {file}",
            default="default of torchtitan",
            table=TABLE,
            settings=toml_settings(text_of_kind(Path(file), *KINDS["torchtitan"]), file),
        )
        if str(self["model.name"]) in _MISSING:
            # Such a model has keys that are unknown too, but its missing part matters more.
            _refuse_flavor(self["model.name"], self["model.flavor"], self.place("model.name"))
        self.refuse_unknown()
        if not self.settings.keys() & TABLE.mapped.keys():
            message, fix = "has no key of a job of torchtitan", "write the path of a job"
            reason = "another file would be imported with the default of every field"
            raise InputError.of("E741", message, Location(self.file), fix, reason)

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, or its default."""
        return self.setting(key).value

    def setting(self, key: str) -> Setting:
        """Return a key with its value or its default."""
        word = self.table.mapped.get(key)
        default = word.default if word else None
        return self.given(key) or Setting(key, key, default, Location(self.file))

    def value(self, key: str) -> Any:
        word = self.table.mapped[key]
        if word.values:
            return self.choice(key)
        return self.count(key) if type(word.default) is int else self[key]

    def count(self, key: str, *, or_rest: bool = False, least: int = 1) -> int:
        """Return the value of a key: an integer of at least `least`, or -1 if `or_rest`.

        Raises:
            InputError: the value is not such an integer.
        """
        value = self[key]
        if type(value) is int and (value >= least or (or_rest and value == -1)):
            return value
        also, sign = ", or -1" if or_rest else "", "positive" if least else "non-negative"
        raise self.wrong(key, f"must be a {sign} integer{also}", f"write {least} or more{also}")

    def choice(self, key: str, what: str = "is not modelled") -> Any:
        """Return our value for one of the values in the table.

        Raises:
            InputError: the table does not have the value.
        """
        value, values = self[key], self.table.mapped[key].values
        if isinstance(value, str) and value in values:
            return values[value]
        *others, last = values
        raise self.wrong(key, what, f"write {', '.join(others)} or {last}")

    def wrong(self, key: str, what: str, fix: str) -> InputError:
        setting = self.setting(key)
        message = f"{key} is {as_scalar(setting.value)}: it {what}"
        return InputError.of("E872", message, setting.place, fix)

    def set_all(self) -> None:
        self.tensor = self.count("parallelism.tensor_parallel_degree")
        self.pipeline = self.count("parallelism.pipeline_parallel_degree")
        context = self.count("parallelism.context_parallel_degree")
        self.use_gpus(self.tensor, context, self.pipeline)
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
        if not (source := _FLAVORS.get(name, {}).get(flavor, "")):
            _refuse_flavor(name, flavor, self.setting("model.flavor").place)
        fields = getattr(models, source).model_dump(exclude_unset=True)
        for field, value in fields.items():
            if field not in ("seq_length", "mtp_num_layers"):
                self.set_because(f"model.{field}", value, f"{name} {flavor}: {source}")
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
        schedule = _SCHEDULES.get(str(self[key]).lower())
        if schedule is None:
            raise self.wrong(key, "is not modelled", f"write one of {', '.join(_SCHEDULES)}")
        self.set("schedule", schedule, key)
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
            letters = ["t" * size for size in sizes]
            letters[0], letters[-1] = f"E{letters[0]}", f"{letters[-1]}L"
            self.set("parallelism.layout", layout_of_chunks(letters), *keys)

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
        # Jobs in TOML are older than the loss in chunks.
        stack = "torchtitan_compiled@2025.04" if self.compile_keys else "torchtitan"
        self.set("software.stack", stack, *keys)
        has_compiled_loss = bool(keys) and "loss" in components
        if has_compiled_loss != bool(self.compile_keys):
            name = "compile.components"
            self.set("software.fused_cross_entropy", has_compiled_loss, name)
        key = "training.disable_cuda_graphs"
        if self.given(key) and not self[key]:
            self.set("software.cuda_graphs", True, key)

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
        if not names:
            return
        recipe = self["float8.recipe_name"]
        reasons = {
            f"{', '.join(names)} is not torchao's float8": {*names} != {"float8"},
            f"the recipe is {recipe}": recipe not in (None, "tensorwise"),
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
        self.set("precision.fp8_recipe", "tensorwise", "float8.recipe_name")
        gathers = "float8.enable_fsdp_float8_all_gather"
        if data["memory"]["zero_stage"] == 3 and self[gathers]:
            self.set("precision.fp8_parameters", True, gathers)
            scales = "float8.precompute_float8_dynamic_scale_for_fsdp"
            if not self[scales]:
                text = "a separate collective for the scale of each weight: more small collectives"
                self.note(scales, text, self.place(scales))
        filtered = "float8.filter_fqns"
        if "output" not in str(self[filtered]):
            text = "the output layer also computes in 8 bits; the scenario has 16 bits"
            self.note(filtered, text, self.place(filtered))

    def _asynchronous_tensor_parallel(self) -> None:
        key = "parallelism.enable_async_tensor_parallel"
        value = self[key]
        if type(value) is not bool:
            raise self.wrong(key, "must be true or false", "write true or false")
        if value and self.tensor > 1:
            self.set("overlap.tensor_parallel", True, key)
            self.set("overlap.userbuffers", True, key)
            text = "the scenario has the chunks and order of Transformer Engine's userbuffers"
            self.note(key, text, self.place(key))
