"""Fine-tuning with Megatron-Bridge and NeMo: adapters (LoRA), and packed documents.

Defaults are those of their classes LoRA and CanonicalLoRA (peft/lora.py, peft/canonical_lora.py).
"""

from __future__ import annotations

import re
from typing import Any

from simtrain.errors import InputError
from simtrain.importing.draft import Draft
from simtrain.importing.nemo.config import TARGET, Config, Field
from simtrain.importing.nemo.translation import Translation
from simtrain.scenario.model import MODULES

_PACKING = re.compile(r"\.(packed_sequence_specs|offline_packing_specs)\.packed_sequence_size$")
_RANK = 32
_FUSED = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
_CANONICAL = [module for module in MODULES if module not in ("linear_qkv", "linear_fc1")]
_TARGETS = {"LoRA": _FUSED, "CanonicalLoRA": _CANONICAL}
_SCHEMES = {"lora": "LoRA", "canonical_lora": "CanonicalLoRA", "dora": "DoRA"}
_WITHOUT_ADAPTERS = "num_experts", "multi_latent_attention", "mtp_num_layers"
"""Arguments of models whose adapters are not simulated."""


def translate_adapters(translation: Translation) -> None:
    """Set the adapters of a config, or note that all weights are trained instead.

    Raises:
        InputError: adapters of another kind, or of other layers (E872).
    """
    config = translation.config
    scheme = config.target("peft") or str(config.value("peft", ""))
    if scheme == "default_peft_config":
        scheme = str(config.value("peft.0") or config.value("peft.peft_scheme", ""))
    scheme = _SCHEMES.get(scheme.lower(), scheme)
    if not scheme or scheme == "none":
        return
    field = config.fields.get("peft") or config.fields[f"peft.{TARGET}"]
    if scheme == "DoRA":
        message = "peft is DoRA, which also trains the length of each column of the weights"
        raise InputError.of("E872", message, field.place, "import LoRA, or remove peft")
    is_other = any(
        name in translation.settings and translation.settings[name].value not in ("None", "False")
        for name in _WITHOUT_ADAPTERS
    )
    if scheme not in _TARGETS or is_other or _is_unknown(translation):
        translation.add("peft", field, "peft", scheme)
        return
    for name, default in (("dim", _RANK), ("target_modules", _TARGETS[scheme]), ("dropout", 0.0)):
        entry = config.fields.get(f"peft.{name}")
        if entry is None or entry.value is None:
            entry = Field(default, field.place)
        translation.add(f"peft_{name}", entry, f"peft.{name}")


def set_adapters(draft: Draft) -> None:
    """Set the fields of the adapters.

    Raises:
        InputError: a value is wrong, or adapters are of single layers or other modules (E872).
    """
    rank = draft.given("peft_dim")
    targets, dropout = draft.given("peft_target_modules"), draft.given("peft_dropout")
    if rank is None or targets is None or dropout is None:
        return
    modules = targets.value.split()
    if wrong := [module for module in modules if module not in MODULES]:
        message = f"peft.target_modules has {wrong[0]}, which is not simulated"
        fix = f"write some of {', '.join(MODULES)}"
        raise InputError.of("E872", message, targets.place, fix, "adapters are of whole layers")
    values: dict[str, Any] = {"rank": rank, "dropout": dropout}
    for name, setting in values.items():
        try:
            number = int(setting.value) if name == "rank" else float(setting.value)
        except ValueError:
            message, fix = f"{setting.words} is not a number", "write a number"
            raise InputError.of("E872", message, setting.place, fix) from None
        draft.set(f"model.lora.{name}", number, setting.name)
    draft.set("model.lora.modules", modules, targets.name)


def note_packing(draft: Draft, config: Config) -> None:
    """Note packed documents, whose lengths are in the data, unless an override has them."""
    names = (name for name, field in config.fields.items() if field.value and _PACKING.search(name))
    name = next(names, "")
    is_set = any(override.startswith("batch.packed_lengths=") for override in draft.overrides)
    if name and not is_set:
        text = (
            "sequences pack documents, whose lengths are in the data: add --set "
            "batch.packed_lengths=[512] or other lengths; attention spans whole sequences here"
        )
        draft.note(name, text, config.fields[name].place)


def _is_unknown(translation: Translation) -> bool:
    names = "dim", "target_modules", "dropout"
    fields = (translation.config.fields.get(f"peft.{name}") for name in names)
    return any(field is not None and field.unknown for field in fields)
