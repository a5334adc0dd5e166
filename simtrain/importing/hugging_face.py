"""Import the config.json of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simtrain.errors import InputError, Location, Problem, did_you_mean
from simtrain.importing.draft import DEFAULT, Draft, padded_vocabulary, set_counts
from simtrain.importing.expert_layers import dense_and_frequency, full_attention_every
from simtrain.importing.hugging_face_keys import (
    FAMILIES,
    GATED_ACTIVATIONS,
    LATENT_FIELDS,
    NOT_MODELLED,
    PLAIN_ACTIVATIONS,
    WITHOUT_EFFECT,
    Family,
)
from simtrain.scenario import Scenario
from simtrain.strict_yaml import Document, as_scalar, load_document

_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


def import_hugging_face(file: str, overrides: Iterable[str] = ()) -> tuple[Scenario, str]:
    """Import a config.json; return the scenario and the text of its file.

    Args:
        file: path of the config.json.
        overrides: fields to set, such as "parallelism.tensor=8".

    Raises:
        InputError: unreadable files, unsupported model types, unknown keys and invalid values.
    """
    # JSON is YAML, and the YAML reader keeps line numbers.
    document = load_document(file)
    mapping = _Mapping(document, _family(document, file), file, tuple(overrides))
    return mapping.draft.finished(mapping.required)


def _family(document: Document, file: str) -> Family:
    kind = document.data.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    place = document.positions.of_value(("model_type",)) or Location(file)
    keys = [key for key in document.data if key in NOT_MODELLED]
    has = f"; it has keys that are not modelled: {', '.join(keys)}" if keys else ""
    raise InputError.of(
        "E877",
        f'model_type is "{kind}", which cannot be imported{has}'
        if kind
        else "model_type is missing",
        place,
        f"{did_you_mean(str(kind), FAMILIES)}Supported types: {', '.join(FAMILIES)}",
        "importing it as another type would give a wrong time and memory",
    )


class _Mapping:
    """Maps the keys of a config to the fields of a scenario."""

    def __init__(
        self, document: Document, family: Family, file: str, overrides: tuple[str, ...]
    ) -> None:
        self.document, self.family = document, family
        self.draft = Draft(file, f"Hugging Face's config in {file}", overrides)
        self.keys = {field: key for key, field in reversed([*family.mapped.items()])}
        self._refuse_unknown_keys()
        self.required = {
            f"model.{name}": f'"{self.keys[f"model.{name}"]}"'
            for name in ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
        }
        self._model()
        split = self.draft.override("parallelism.tensor") or 1
        self._vocabulary(split)
        set_counts(self.draft)
        self.draft.set("attention_backend", "fused", DEFAULT)
        dtype = _DTYPES.get(str(self.value("precision.compute")))
        if dtype:
            self.set("precision.compute", dtype)
        else:
            self.draft.set("precision.compute", "bf16", DEFAULT)
        if dtype == "fp16" and "experts" in self.draft.data["model"]:
            comment = "a router in fp16 is not modelled"
            self.draft.set("model.experts.router_dtype", "fp32", comment)
        self.draft.set("cluster", Scenario.model_fields["cluster"].default, DEFAULT)
        self._notes()

    def _refuse_unknown_keys(self) -> None:
        known = {*self.family.mapped, *NOT_MODELLED, *WITHOUT_EFFECT}
        problems = [
            Problem(
                "E871",
                f'"{key}" is not a known key of this model\'s config',
                self.document.positions.of_key((key,)),
                reason="an ignored key could change the time or the memory",
                fix=f"{did_you_mean(key, sorted(known))}Remove it if it affects neither time nor "
                "memory",
            )
            for key in self.document.data
            if key not in known
        ]
        if problems:
            raise InputError(problems)

    def key(self, field: str) -> str | None:
        """Return the key of the config that sets a field, or None."""
        keys = (key for key, mapped in self.family.mapped.items() if mapped == field)
        return next((key for key in keys if self.document.data.get(key) is not None), None)

    def value(self, field: str) -> Any:
        """Return the value of a field's key, or the default of the family."""
        if key := self.key(field):
            return self.document.data[key]
        keys = (key for key, mapped in self.family.mapped.items() if mapped == field)
        return next(
            (self.family.defaults[key] for key in keys if key in self.family.defaults), None
        )

    def set(self, field: str, value: Any, otherwise: str = "default of transformers") -> None:
        """Set a field, with its key and line as comment."""
        key = self.key(field)
        place = self.document.positions.of_value((key,)) if key else None
        line = f", line {place.line}" if place else ""
        self.draft.set(field, value, f"{key}{line}" if key else otherwise, place)

    def _model(self) -> None:
        fixed = dict(self.family.fixed)
        for name in ("num_layers", "hidden_size", "num_attention_heads"):
            if (value := self.value(f"model.{name}")) is not None:
                self.set(f"model.{name}", value)
        self._attention()
        hidden = self.value("model.hidden_size")
        if not self._set_experts():
            pass  # Every layer has experts instead of an MLP.
        elif (ffn := self.value("model.ffn_hidden_size")) is not None:
            self.set("model.ffn_hidden_size", ffn)
        elif isinstance(hidden, int):
            self.draft.set("model.ffn_hidden_size", 4 * hidden, "default of transformers: 4 h")
        if (length := self.value("model.seq_length")) is not None:
            self.set("model.seq_length", length)
            self.draft.append("model.seq_length", "the longest sequence of the model")
        self.set("model.tied_embeddings", self.value("model.tied_embeddings"))
        self._activation()
        attention = self.document.data.get("attention_bias")
        mlp = self.document.data.get("mlp_bias")
        if (qkv := self.document.data.get("qkv_bias")) is not None:
            fixed["qkv_biases"] = qkv
        if attention is not None:
            fixed["qkv_biases"] = attention
            fixed["biases"] = bool(attention and (mlp or fixed["biases"]))
        if bool(attention) != bool(mlp) and not fixed["biases"]:
            kind = "attention" if attention else "MLP"
            self.draft.note(f"biases only in the {kind}", "slightly more elementwise work")
        for name, value in fixed.items():
            self.set(f"model.{name}", value, f"as all models of {self.document.data['model_type']}")
        for name in ("hidden_dropout", "attention_dropout"):
            dropout = self.value(f"model.{name}")
            self.set(f"model.{name}", float(dropout or 0))

    def _set_experts(self) -> bool:
        """Set the experts, if any; return whether at least one layer has an MLP instead."""
        data, kind = self.document.data, self.document.data["model_type"]
        names = ("num", "top_k", "ffn_hidden_size", "shared_ffn_hidden_size")
        values = {name: self.value(f"model.experts.{name}") for name in names}
        key = self.keys.get("model.experts.num")
        # Configs of dense models in these families have null or 0.
        if key is None or not data.get(key, values["num"]):
            return True
        shared = values["shared_ffn_hidden_size"]
        if self.keys.get("model.experts.shared_ffn_hidden_size") == "n_shared_experts":
            shared = (data.get("n_shared_experts", shared) or 0) * (values["ffn_hidden_size"] or 0)
        for name, value in (values | {"shared_ffn_hidden_size": shared or None}).items():
            if value is not None:
                self.set(f"model.experts.{name}", value)
        if kind == "qwen2_moe" and shared:
            self.draft.set("model.experts.shared_gate", True, f"as all models of {kind}")
        self._set_router()
        self.required["model.experts.top_k"] = f'"{self.keys["model.experts.top_k"]}"'
        return self._set_layers_of_experts()

    def _set_router(self) -> None:
        """Set how DeepSeek's routers choose experts; noaux_tc adds a bias, greedy has no groups."""
        fields = ("router_score", "router_bias", "router_groups", "router_group_top_k")
        score, method, *groups = (self.value(f"model.experts.{field}") for field in fields)
        if score == "sigmoid":
            self.set("model.experts.router_score", score)
        elif score not in (None, "softmax"):
            self.draft.note(f"scoring_func {score}", "another score; the scenario has softmax")
        if method == "noaux_tc" and score == "sigmoid":
            self.set("model.experts.router_bias", True)
        if method in ("noaux_tc", "group_limited_greedy") and all(groups) and groups[0] > 1:
            for field, number in zip(fields[2:], groups, strict=True):
                self.set(f"model.experts.{field}", number)

    def _set_layers_of_experts(self) -> bool:
        """Set which layers have experts; return whether at least one has none."""
        dense = self.value("model.experts.first_dense_layers") or 0
        frequency = self.value("model.experts.layer_frequency") or 1
        if "decoder_sparse_step" in self.family.mapped:
            dense, frequency = self._layers_of_qwen(dense or [], frequency)
        fields = {"first_dense_layers": (dense, 0), "layer_frequency": (frequency, 1)}
        changed = {name: value for name, (value, default) in fields.items() if value != default}
        for name, value in changed.items():
            self.set(f"model.experts.{name}", value)
        return bool(changed)

    def _layers_of_qwen(self, dense: Any, step: Any) -> tuple[int, int]:
        """Return first_dense_layers and layer_frequency of Qwen's keys.

        A layer has experts if its index is not in mlp_only_layers and its index plus 1 is a
        multiple of decoder_sparse_step (modeling_qwen3_moe.py).
        """
        layers = self.value("model.num_layers")
        if not (isinstance(layers, int) and isinstance(dense, list) and isinstance(step, int)):
            return 0, 1
        pattern = [one not in dense and (one + 1) % step == 0 for one in range(layers)]
        found = dense_and_frequency(pattern)
        if found is None:
            keys = [
                key
                for key in ("mlp_only_layers", "decoder_sparse_step")
                if self.document.data.get(key)
            ]
            raise InputError.of(
                "E878",
                f"{keys[0]} is {as_scalar(self.document.data[keys[0]])}, which is not modelled",
                self.document.positions.of_value((keys[0],)),
                "write mlp_only_layers: the first layers, or []; write decoder_sparse_step: 1",
                "only models that start with dense layers, followed by experts in every layer or "
                "every nth layer, are modelled",
            )
        return found

    def _attention(self) -> None:
        """Set heads, latent attention, windows and multi-token prediction."""
        data = self.document.data
        is_latent = "kv_lora_rank" in self.family.mapped
        names = LATENT_FIELDS if is_latent else ("num_query_groups", "kv_channels")
        for name in names:
            value = self.value(f"model.{name}")
            # DeepSeek-V2-Lite writes null: its queries have no latent.
            is_null = is_latent and data.get(self.keys[f"model.{name}"], value) is None
            if value is not None and not is_null:
                self.set(f"model.{name}", value)
        if data.get("model_type") == "falcon":
            self._falcon()
        if data.get("use_parallel_residual", True) and data["model_type"] == "gpt_neox":
            self.set("model.parallel_attention_mlp", "two_norms")
        window = self.value("model.attention_window")
        length = self.value("model.seq_length")
        is_used = data.get("use_sliding_window") is not False and window is not None
        if is_used and not (
            isinstance(length, int) and isinstance(window, int) and window >= length
        ):
            self._window(window)
        kinds = data.get("layer_types")
        known = {"full_attention", "sliding_attention"}
        if others := {*kinds} - known if isinstance(kinds, list) else set():
            text = "layers of different kinds"
            self.draft.note(f"{sorted(others)[0]} in layer_types", text, self._place("layer_types"))
        if modules := self.value("model.mtp_num_layers"):
            self.set("model.mtp_num_layers", modules)

    def _window(self, window: Any) -> None:
        """Set the window, and the layers without a window."""
        every = self.value("model.full_attention_every")
        if isinstance(every, list):
            has_window = [one == "sliding_attention" for one in every]
            if not any(has_window):
                return
            every = None if all(has_window) else full_attention_every(has_window)
            if every is None and not all(has_window):
                text = "the scenario has a window in every layer: less work in core attention"
                self.draft.note("full_attention in layer_types", text, self._place("layer_types"))
        self.set("model.attention_window", window)
        if isinstance(every, int) and every <= (self.value("model.num_layers") or every):
            self.set("model.full_attention_every", every)

    def _place(self, key: str) -> Location | None:
        return self.document.positions.of_key((key,))

    def _falcon(self) -> None:
        """Set query groups and norms of Falcon, which depend on three keys."""
        data = self.document.data
        is_new = bool(data.get("new_decoder_architecture"))
        if is_new or data.get("multi_query") is False:
            groups = data.get("num_kv_heads") or data.get("num_attention_heads")
        else:
            groups = 1
        self.set("model.num_query_groups", groups, "default of transformers: multi_query")
        if is_new or self.value("model.parallel_attention_mlp"):
            norms = data.get("num_ln_in_parallel_attn") or 1 + is_new
            kind = "two_norms" if is_new and norms == 2 else "one_norm"
            self.set("model.parallel_attention_mlp", kind)

    def _activation(self) -> None:
        is_gated = self.family.fixed["normalization"] == "rms_norm"
        known = GATED_ACTIVATIONS if is_gated else PLAIN_ACTIVATIONS
        written = self.value("model.activation")
        if not isinstance(written, str) or written not in known:
            key = self.key("model.activation") or ""
            raise InputError.of(
                "E878",
                f"{key} is {as_scalar(written)}, which is not modelled",
                self.document.positions.of_value((key,)),
                f"write one of {', '.join(known)}",
            )
        self.set("model.activation", known[written])

    def _vocabulary(self, tensor: int) -> None:
        if isinstance(tokens := self.value("model.vocab_size"), int):
            padded, comment = padded_vocabulary(tokens, 128 * tensor)
            self.set("model.vocab_size", padded)
            self.draft.append("model.vocab_size", comment)

    def _notes(self) -> None:
        data = self.document.data
        for key, effect in NOT_MODELLED.items():
            value = data.get(key)
            written = {True: "True", False: "False"}.get(value) if isinstance(value, bool) else None
            written = written or str(value)
            if key in data and effect.applies(written):
                place = self.document.positions.of_key((key,))
                self.draft.note(f"{key} {as_scalar(value)}", effect.text, place)
