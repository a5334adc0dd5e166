"""Import the config.json of a Hugging Face model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from simtrain.base.importer import ImportRequest, load_kind
from simtrain.base.strict_yaml import FieldError, YamlDocument, as_scalar, section
from simtrain.base.values import replace
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.guests.importing.draft import DEFAULT, Draft, padded_vocabulary
from simtrain.guests.importing.hugging_face.keys import (
    FAMILIES,
    GATED_ACTIVATIONS,
    LATENT_FIELDS,
    MISSING,
    NOT_MODELLED,
    PLAIN_ACTIVATIONS,
    TEXT_MODELS,
    Family,
    table_of,
)
from simtrain.guests.importing.kinds import KINDS
from simtrain.guests.importing.layer_patterns import full_attention_every
from simtrain.guests.importing.settings import Setting
from simtrain.scenario.model import MLP, checked_pattern


def hugging_face_draft(request: ImportRequest) -> Draft:
    """Return the draft of a scenario with the fields that a config.json decides.

    Raises:
        InputError: unreadable files, unsupported model types, unknown keys and invalid values.
    """
    file = request.file
    if (inside := Path(file, "config.json")).is_file():
        file = str(inside)
        request = replace(request, source=file)
    # JSON is YAML, and the YAML reader keeps line numbers.
    document = load_kind(Path(file), *KINDS["hf"])
    if str(document.data.get("model_type")) in TEXT_MODELS:
        document = _text_model(document)
    family = _family(document, file)
    draft = _ConfigDraft(document, family, request)
    axes = ("tensor", "context", "pipeline")
    draft.use_gpus(*(draft.override(f"parallelism.{axis}") for axis in axes))
    draft.set_all()
    return draft


_RECORD = "record the model: simtrain import --record {} --gpus 8 --fsdp"


def _text_model(document: YamlDocument) -> YamlDocument:
    """Return the config of the text model in that of a model which reads images too."""
    text, kind = document.data.get("text_config"), TEXT_MODELS[document.data["model_type"]]
    if not isinstance(text, dict):
        place = document.positions.of_value(("model_type",))
        fix = "copy the model's whole config.json"
        raise InputError.of("E873", '"text_config" is missing', place, fix)
    inner = section(document, ("text_config",))
    outer = {key: document.data[key] for key in ("torch_dtype", "dtype") if key in document.data}
    return YamlDocument(outer | {"model_type": kind} | inner.data, inner.positions)


def _family(document: YamlDocument, file: str) -> Family:
    kind = document.data.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    place = document.positions.of_value(("model_type",)) or Location(file)
    record = _RECORD.format(shlex.quote(file))
    if missing := MISSING.get(str(kind)):
        message = f'model_type is "{kind}": simtrain has no {missing}'
        fix = f"{record}; or write the layer as blocks of your own: simtrain show extend"
    else:
        keys = [key for key in document.data if key in NOT_MODELLED]
        has = f"; it has keys that are not modelled: {', '.join(keys)}" if keys else ""
        message = f'model_type is "{kind}", which cannot be imported{has}'
        message = message if kind else "model_type is missing"
        recorded = f"{record}. " if isinstance(kind, str) else ""
        supported = f"Supported types: {', '.join(FAMILIES)}"
        fix = f"{did_you_mean(str(kind), FAMILIES)}{recorded}{supported}"
    reason = "importing it as another type would give a wrong time and memory"
    raise InputError.of("E877", message, place, fix, reason)


class _ConfigDraft(Draft):
    """A scenario during its import from the keys of a config.

    Args:
        document: the config.
        family: the models of its type.
        request: what is imported.
    """

    def __init__(self, document: YamlDocument, family: Family, request: ImportRequest) -> None:
        places = document.positions
        super().__init__(
            request,
            what=f"Hugging Face's config in {request.file}",
            default="default of transformers",
            table=(table := table_of(family)),
            settings={
                key: Setting(key, key, value, places.of_value((key,)))
                if key in table
                else Setting(key, f'"{key}"', value, places.of_key((key,)))
                for key, value in document.data.items()
            },
        )
        self.config, self.family = document.data, family
        self.keys = {word.field: key for key, word in reversed([*table.mapped.items()])}
        self.refuse_unknown()

    def word_of(self, name: str) -> str:
        return f'"{word}"' if (word := super().word_of(name)) else ""

    def key(self, field: str) -> str | None:
        return next((key for key in self._keys(field) if self.config.get(key) is not None), None)

    def value(self, field: str) -> Any:
        if key := self.key(field):
            return self.config[key]
        defaults = (self.table.mapped[key].default for key in self._keys(field))
        return next((default for default in defaults if default is not None), None)

    def _keys(self, field: str) -> list[str]:
        return [key for key, word in self.table.mapped.items() if word.field == field]

    def set_by_key(self, field: str, value: Any, otherwise: str = "") -> None:
        self.set(field, value, self.key(field) or "", otherwise=otherwise)

    def copy_by_key(self, *fields: str) -> None:
        for field in fields:
            if (value := self.value(field)) is not None:
                self.set_by_key(field, value)

    def set_all(self) -> None:
        self._model()
        self._counts()
        self.set_because("attention_backend", "fused", DEFAULT)
        dtypes = self.table.mapped["dtype"].values
        dtype = dtypes.get(str(self.value("precision.compute")))
        if dtype:
            self.set_by_key("precision.compute", dtype)
        else:
            self.set_because("precision.compute", "bf16", DEFAULT)
        if dtype == "fp16" and "experts" in self.data["model"]:
            comment = "a router in fp16 is not modelled"
            self.set_because("model.experts.router_dtype", "fp32", comment)
        self.note_effects()

    def _counts(self) -> None:
        """Set parallelism and batch to defaults: a config only describes a model."""
        for name in ("tensor", "pipeline", "data"):
            ranks = self.override(f"parallelism.{name}") or 1
            self.set_because(f"parallelism.{name}", ranks, DEFAULT)
        micro = self.override("batch.micro") or 1
        self.set_because("batch.micro", micro, DEFAULT)
        total = micro * self.data["parallelism"]["data"]
        self.set_because("batch.global", total, f"{DEFAULT}; micro x data")

    def _model(self) -> None:
        kind = self.config["model_type"]
        self.copy_by_key("model.num_layers", "model.hidden_size", "model.num_attention_heads")
        self._hybrid()
        self._attention()
        has_dense = self._set_experts()
        if has_dense if self.pattern is None else MLP in self.pattern:
            hidden, field = self.value("model.hidden_size"), "model.ffn_hidden_size"
            if isinstance(hidden, int):
                self.set_because(field, 4 * hidden, "default of transformers: 4 h")
            self.copy_by_key(field)
        if (length := self.value("model.seq_length")) is not None:
            detail = "the longest sequence of the model"
            key = self.key("model.seq_length") or ""
            self.set("model.seq_length", length, key, detail=detail, otherwise=DEFAULT)
        self.copy_by_key("model.tied_embeddings")
        self._activation()
        shared = self.family.fixed | self._biases()
        if (normed := self.config.get("use_qk_norm")) is not None:
            shared["qk_norm"] = normed
        for name, value in shared.items():
            self.set_by_key(f"model.{name}", value, f"as all models of {kind}")
        for name in ("hidden_dropout", "attention_dropout"):
            dropout = self.value(f"model.{name}") or 0
            is_number = isinstance(dropout, int | float)
            self.set_by_key(f"model.{name}", float(dropout) if is_number else dropout)
        for what, effect in self.family.differs.items():
            self.note(what, effect)
        if isinstance(tokens := self.value("model.vocab_size"), int):
            tensor = self.override("parallelism.tensor") or 1
            padded, detail = padded_vocabulary(tokens, 128 * tensor)
            self.set("model.vocab_size", padded, "vocab_size", detail=detail)

    def _hybrid(self) -> None:
        """Set the pattern of a hybrid model, its layers, Mamba-2's sizes and the framework."""
        if self.pattern is None:
            return
        field = "model.layer_pattern"
        if not self.pattern:
            missing = self.keys.get(field, self.keys["model.num_layers"])
            fix = f'add "{missing}": "M-M*-", or another pattern'
            message = f'"{missing}" is missing'
            raise InputError.of("E873", message, self.place("model_type"), fix)
        kind, key = self.config["model_type"], self.key(field) or ""
        try:
            checked_pattern(self.pattern)
        except FieldError as error:
            fix = "write the layer as blocks of your own: simtrain show extend"
            raise InputError.of("E877", f"{key}: {error}", self.place(key), fix) from None
        self.set_by_key("model.num_layers", len(self.pattern))
        self.set_by_key(field, self.pattern, f"as all models of {kind}")
        for name in ("num_heads", "head_dim", "state_dim", "num_groups", "chunk_size"):
            self.copy_by_key(f"model.mamba.{name}")
        comment = "the framework of hybrid models"
        self.set_because("software.stack", "megatron_core", comment)

    @property
    def pattern(self) -> str | None:
        return self.family.pattern(self.config) if self.family.pattern else None

    def _biases(self) -> dict[str, Any]:
        """Return the biases that keys of the config set."""
        attention, mlp = self.config.get("attention_bias"), self.config.get("mlp_bias")
        biases: dict[str, Any] = {}
        if (qkv := self.config.get("qkv_bias")) is not None:
            biases["qkv_biases"] = qkv
        if attention is not None:
            biases["qkv_biases"] = attention
            biases["biases"] = bool(attention and (mlp or self.family.fixed["biases"]))
        has_biases = biases.get("biases", self.family.fixed["biases"])
        if bool(attention) != bool(mlp) and not has_biases:
            kind = "attention" if attention else "MLP"
            self.note(f"biases only in the {kind}", "slightly more elementwise work")
        return biases

    def _set_experts(self) -> bool:
        """Set the experts, if any; return whether at least one layer has an MLP instead."""
        key = self.keys.get("model.experts.num")
        # Configs of dense models in these families have null or 0.
        if key is None or not self.config.get(key, self.value("model.experts.num")):
            return True
        size_field = "model.experts.ffn_hidden_size"
        self.copy_by_key("model.experts.num", "model.experts.top_k", size_field)
        shared_field = "model.experts.shared_ffn_hidden_size"
        shared, size = self.value(shared_field), self.value(size_field)
        if self.family.shared_expert:
            shared = size
        as_all = f"as all models of {self.config['model_type']}"
        if self.keys.get(shared_field) == "n_shared_experts":
            shared = self.config.get("n_shared_experts", shared)
            if isinstance(shared, int) and isinstance(size, int):
                shared *= size
        if shared:
            self.set_by_key(shared_field, shared, as_all)
        if self.family.shared_gate and shared:
            self.set_because("model.experts.shared_gate", True, as_all)
        self._set_router()
        return self._set_layers_of_experts()

    def _set_router(self) -> None:
        """Set how DeepSeek's routers choose experts; noaux_tc adds a bias, greedy has no groups."""
        fields = ("router_score", "router_bias", "router_groups", "router_group_top_k")
        score, method, *groups = (
            self.family.router.get(field) or self.value(f"model.experts.{field}")
            for field in fields
        )
        if score == "sigmoid":
            self.set_by_key("model.experts.router_score", score)
        elif score not in (None, "softmax"):
            self.note(f"scoring_func {score}", "another score; the scenario has softmax")
        if method == "noaux_tc" and score == "sigmoid":
            self.set_by_key("model.experts.router_bias", True)
        if method in ("noaux_tc", "group_limited_greedy") and all(groups) and groups[0] != 1:
            self.copy_by_key("model.experts.router_groups", "model.experts.router_group_top_k")

    def _set_layers_of_experts(self) -> bool:
        """Set which layers have experts; return whether at least one has none."""
        if self.pattern is not None:
            return False
        dense = self.value("model.experts.first_dense_layers") or 0
        frequency = self.value("model.experts.layer_frequency") or 1
        if dense != 0:
            self.set_by_key("model.experts.first_dense_layers", dense)
        if frequency != 1:
            self.set_by_key("model.experts.layer_frequency", frequency)
        return (dense, frequency) != (0, 1)

    def _attention(self) -> None:
        """Set heads, latent attention, windows and multi-token prediction."""
        config = self.config
        is_latent = "kv_lora_rank" in self.family.mapped
        for name in LATENT_FIELDS if is_latent else ("num_query_groups", "kv_channels"):
            value = self.value(f"model.{name}")
            # DeepSeek-V2-Lite writes null: its queries have no latent.
            is_null = is_latent and config.get(self.keys[f"model.{name}"], value) is None
            if value is not None and not is_null:
                self.set_by_key(f"model.{name}", value)
        window = self.value("model.attention_window")
        length = self.value("model.seq_length")
        is_used = config.get("use_sliding_window") is not False and window is not None
        if is_used and not (
            isinstance(length, int) and isinstance(window, int) and window >= length
        ):
            self._window(window)
        kinds = config.get("layer_types")
        known = {"full_attention", "sliding_attention"}
        if others := {*kinds} - known if isinstance(kinds, list) else set():
            text = "layers of different kinds"
            self.note(f"{sorted(others)[0]} in layer_types", text, self.place("layer_types"))
        if modules := self.value("model.mtp_num_layers"):
            self.set_by_key("model.mtp_num_layers", modules)

    def _window(self, window: Any) -> None:
        """Set the window, and the layers without a window."""
        every = self.value("model.full_attention_every")
        if isinstance(every, list):
            has_window = [kind == "sliding_attention" for kind in every]
            if not any(has_window):
                return
            every = None if all(has_window) else full_attention_every(has_window)
            if every is None and not all(has_window):
                text = "the scenario has a window in every layer: less work in core attention"
                self.note("full_attention in layer_types", text, self.place("layer_types"))
        self.set_by_key("model.attention_window", window)
        layers = self.value("model.num_layers")
        if isinstance(every, int) and every <= (layers if isinstance(layers, int) else every):
            self.set_by_key("model.full_attention_every", every)

    def _activation(self) -> None:
        if "model.activation" not in self.keys:
            return
        family = self.family
        is_gated = family.is_gated and family.fixed["normalization"] == "rms_norm"
        known = GATED_ACTIVATIONS if is_gated else PLAIN_ACTIVATIONS
        written = self.value("model.activation")
        if not isinstance(written, str) or written not in known:
            key = self.key("model.activation") or ""
            raise InputError.of(
                "E878",
                f"{key} is {as_scalar(written)}, which is not modelled",
                self.place(key),
                f"write one of {', '.join(known)}",
            )
        self.set_by_key("model.activation", known[written])
