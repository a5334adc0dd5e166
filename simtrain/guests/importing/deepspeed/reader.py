"""Import DeepSpeed's JSON, with the model of a config.json of Hugging Face.

Defaults follow DeepSpeed's runtime/config.py, runtime/engine.py and runtime/zero/config.py.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from simtrain.base.importer import ImportRequest, load_kind
from simtrain.base.strict_yaml import dotted, leaves
from simtrain.base.values import replace
from simtrain.errors import InputError, Location
from simtrain.guests.importing.draft import DEFAULT, Draft
from simtrain.guests.importing.hugging_face.model_config import hugging_face_draft
from simtrain.guests.importing.kinds import KINDS
from simtrain.guests.importing.settings import Setting
from simtrain.guests.importing.table import WordsFile
from simtrain.scenario import Scenario, check_scenario

TABLE = WordsFile(Path(__file__).with_name("keys.toml")).table()


def deepspeed_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario with the fields that a config, and its model, decide.

    Without a model in the request, it is the config.json beside the file.

    Raises:
        InputError: unreadable files, no model, unknown keys, and values and combinations that
            DeepSpeed refuses.
    """
    file = request.file
    document = load_kind(Path(file), *KINDS["deepspeed"])
    config = {}
    for path, value in leaves(document.data):
        name = dotted(path)
        config[name] = Setting(name, name, value, document.positions.of_value(path))
    beside = Path(file).with_name("config.json")
    model = str(request.model) or (str(beside) if beside.is_file() else "")
    if not model or Path(model) == Path(file):
        fix = f"simtrain import {file} --model config.json --gpus 8, with the model's"
        raise InputError.of("E881", f"{file} does not say the model", fix=f"{fix} config.json")
    draft = DeepSpeedDraft(
        hugging_face_draft(replace(request, source=model, model="")), file, config
    )
    draft.set_all()
    return draft


def wrong(setting: Setting, what: str, fix: str) -> InputError:
    """Return the error about the value of a key."""
    return InputError.of("E872", f"{setting.words}: it {what}", setting.place or Location(""), fix)


_ZERO = "zero_optimization"
_STAGE = f"{_ZERO}.stage"
_DTYPES = "fp16.enabled", "bf16.enabled", "bfloat16.enabled"
_BATCH = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


class DeepSpeedDraft(Draft):
    """A scenario during its import from DeepSpeed's JSON.

    Args:
        base: the draft of the model.
        file: the file with the JSON.
        config: its keys; those that are "auto" are open.
    """

    def __init__(self, base: Draft, file: str, config: dict[str, Setting]) -> None:
        super().__init__(
            base.request,
            file=file,
            what=f"DeepSpeed's config in {file} and {base.what}",
            default="default of DeepSpeed",
            table=TABLE,
            settings=config,
            data=base.data,
            comments=base.comments,
            places=base.places,
            notes=base.notes,
            assumptions=base.assumptions,
            machine=base.machine,
            replicas=base.replicas,
            ignored=base.ignored,
        )
        self.base, self.overrides = base, base.overrides
        self.refuse_unknown()
        self.num_settings = base.num_settings + len(config)

    def finished(self) -> tuple[Scenario, str]:
        scenario = self.scenario()
        if self.is_default("parallelism.data"):
            what = "the number of GPUs is neither in the config nor in the source of the model"
            raise InputError.of("E881", what, Location(self.file), "add --gpus 8")
        check_scenario(scenario)
        return scenario, self.text()

    def word_of(self, name: str) -> str:
        return super().word_of(name) or self.base.word_of(name)

    def given(self, name: str) -> Setting | None:
        setting = self.settings.get(name)
        return None if setting is None or setting.value in (None, "auto") else setting

    def origin(self, *names: str, otherwise: str = "") -> str:
        text = super().origin(*names, otherwise=otherwise)
        is_read = any(self.given(name) for name in names)
        return f"{text} of {PurePath(self.file).name}" if is_read else text

    def count(self, name: str, least: int = 1) -> int | None:
        """Return the whole number of a key, which files also write as 5e8; None without it.

        Raises:
            InputError: the value is no such number (E872).
        """
        if (setting := self.given(name)) is None:
            return None
        value = setting.value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value == value // 1 and value >= least:
            return int(value)
        what, fix = f"must be a whole number of at least {least}", f"write {least} or more"
        raise wrong(setting, what, fix)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the value of a key that is true or false.

        Raises:
            InputError: the value is neither (E872).
        """
        if (setting := self.given(name)) is None:
            return default
        if type(setting.value) is bool:
            return setting.value
        raise wrong(setting, "must be true or false", "write true or false")

    def set_all(self) -> None:
        key = "tensor_parallel.autotp_size"
        if (tensor := self.count(key, 0) or 0) > 1:
            self.set("parallelism.tensor", tensor, key)
        self.set_because("software.stack", "eager", "a model of transformers")
        self._batch()
        self._dtype()
        stage = self._stage()
        self._gradients(stage)
        self._offload(stage)
        self._overlap(stage)
        self._shards(stage)
        self.note_effects()

    def _batch(self) -> None:
        """Set replicas and batch: all sequences are micro x accumulation x replicas."""
        total, micro, steps = map(self.count, _BATCH)
        micro = self.override("batch.micro") or micro
        replicas = self._replicas(total, micro, steps)
        if total and replicas:
            each = self._quotient(total, replicas, "replicas")
            micro = micro or each // (steps or 1) or 1
            if steps and micro * steps != each:
                raise wrong(
                    self.settings[_BATCH[0]],
                    f"is not {micro} x {steps} x {replicas}: the micro batch, accumulation steps "
                    "and replicas",
                    f"write {micro * steps * replicas}, or --gpus of another number of replicas",
                )
        elif micro and not total:
            total = micro * (steps or 1) * (replicas or 1)
        # What --set says wins, and is checked with the rest.
        is_open = total is None or (self.given(_BATCH[0]) is None and replicas is None)
        self.set("batch.micro", micro or 1, *_BATCH[1:2], otherwise=DEFAULT)
        if is_open:
            self.set_because("batch.global", (micro or 1) * (replicas or 1), DEFAULT)
        else:
            self.set("batch.global", total, *_BATCH)

    def _replicas(self, total: int | None, micro: int | None, steps: int | None) -> int | None:
        """Return the replicas of --set, of the model's source, or of the batch; None if open."""
        if (replicas := self.override("parallelism.data")) is not None:
            return replicas
        if not self.is_default("parallelism.data"):
            of_source: int = self.data["parallelism"]["data"]
            return of_source
        if not (total and micro and steps):
            return None
        replicas = self._quotient(total, micro * steps, "micro batch x accumulation steps")
        self.set("parallelism.data", replicas, *_BATCH)
        return replicas

    def _quotient(self, total: int, factor: int, words: str) -> int:
        quotient, rest = divmod(total, factor)
        if rest or not quotient:
            what = f"is not a multiple of {factor} ({words})"
            raise wrong(self.settings[_BATCH[0]], what, f"write a multiple of {factor}")
        return quotient

    def _dtype(self) -> None:
        """Set the type of products; without fp16 and bf16, DeepSpeed computes in fp32."""
        enabled = [name for name in _DTYPES if self.flag(name)]
        if len(enabled) > 1:
            raise wrong(self.settings[enabled[1]], f"is on, and {enabled[0]} too", "disable one")
        if enabled:
            name = "fp16" if enabled[0].startswith("fp16") else "bf16"
            self.set("precision.compute", name, *enabled)
        elif any(name in self.settings and self.settings[name].value == "auto" for name in _DTYPES):
            self.set_because("precision.compute", "bf16", f'{DEFAULT}: "auto"')
        else:
            self.set("precision.compute", "fp32", *_DTYPES, otherwise="neither fp16 nor bf16")
            comment = "fused kernels support only 16-bit numbers"
            self.set_because("attention_backend", "unfused", comment)

    def _stage(self) -> int:
        """Set the ZeRO stage and return that of the keys."""
        setting = self.given(_STAGE)
        if (stage := self.count(_STAGE, 0)) is None:
            stage = int(self.flag(_ZERO))
        if stage > 3 and setting:
            raise wrong(setting, "must be 0, 1, 2 or 3", "write 1, 2 or 3")
        data = self.override("parallelism.data") or self.data["parallelism"]["data"]
        compute = self.data["precision"]["compute"]
        if stage == 0 and compute == "bf16" and self._accumulates_fp32(stage):
            # BF16_Optimizer (runtime/bf16_optimizer.py) shards its states without ZeRO too.
            comment = "DeepSpeed's BF16_Optimizer shards its states at stage 0 too"
            self.set_because("memory.zero_stage", int(data > 1), comment)
        elif stage and data == 1 and not self.is_default("parallelism.data"):
            comment = f"{self.origin(_STAGE, _ZERO)} has no effect with one replica"
            self.set_because("memory.zero_stage", 0, comment)
        else:
            self.set("memory.zero_stage", stage, _STAGE, _ZERO)
        return stage

    def _accumulates_fp32(self, stage: int) -> bool:
        """Whether gradients are accumulated in fp32 (get_data_types of runtime/engine.py)."""
        setting = self.given("data_types.grad_accum_dtype")
        if setting:
            return str(setting.value) == "fp32"
        compute = self.data["precision"]["compute"]
        return compute == "fp32" or (compute == "bf16" and stage == 0)

    def _gradients(self, stage: int) -> None:
        name = "data_types.grad_accum_dtype"
        dtype = self.data["precision"]["compute"]
        if setting := self.given(name):
            values = self.table.mapped[name].values
            if str(setting.value) not in values:
                raise wrong(setting, "must be fp32, fp16 or bf16", "write fp32")
            dtype = values[str(setting.value)]
        elif self._accumulates_fp32(stage):
            dtype = "fp32"
        self.set("precision.gradients", dtype, name, otherwise=f"{self.default} at stage {stage}")

    def _offload(self, stage: int) -> None:
        names = f"{_ZERO}.offload_optimizer.device", f"{_ZERO}.cpu_offload"
        device = self._device(*names)
        if device == "none":
            return
        if not stage:
            self.note(self.origin(*names), "no effect at stage 0")
            return
        self.set("memory.offload_optimizer", True, *names)
        if device == "nvme":
            self.note(self.origin(*names), "simulated in the host's memory")
        if stage >= 2:
            text = "gradients leave beside the backward pass; simulated after it"
            self.note(self.origin(*names), text)

    def _device(self, key: str, older_key: str) -> str:
        """Return where states are: cpu, nvme or none."""
        setting = self.given(key)
        device = str(setting.value) if setting else "cpu" if self.flag(older_key) else "none"
        if device not in ("cpu", "nvme", "none") and setting:
            raise wrong(setting, "must be cpu, nvme or none", "write cpu")
        return device

    def _overlap(self, stage: int) -> None:
        key = f"{_ZERO}.overlap_comm"
        overlaps = self.flag(key, default=stage == 3) and stage > 0
        self.set("overlap.data_parallel", overlaps, key)

    def _shards(self, stage: int) -> None:
        """Set groups of ranks that share states: MiCS."""
        if stage < 3:
            return
        key = f"{_ZERO}.mics_shard_size"
        if (size := self.count(key, -1) or 0) > 0:
            self.set("memory.shard_over", size, key)
