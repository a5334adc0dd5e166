"""Keys of Hugging Face's config.json by model type: mapped, without effect, or not modelled.

They are rows of keys.toml; what is no row is how a hybrid model writes the pattern of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simtrain.base.values import dataclass, replace
from simtrain.guests.importing.settings import Effect
from simtrain.guests.importing.table import MappedWord, WordsFile, WordTable
from simtrain.scenario.model import ATTENTION, EXPERTS, MAMBA, MLP

_FILE = WordsFile(Path(__file__).with_suffix(".toml"))


@dataclass(frozen=True, slots=True)
class Family:
    """The models of one `model_type`; keys.toml describes its entries.

    Args:
        defaults: default values of optional keys.
        fixed: fields of `model` that all models of the family share.
        mapped: the keys that set fields, without their defaults.
        differs: what the family's layers have beside these fields, and its effect.
        shared_expert: a shared expert is as wide as a routed one, without a key of its own.
        shared_gate: a shared expert has a gate.
        router: entries of routers that no key sets, by their fields.
        pattern: returns the pattern of a config's layers, for hybrid models.
        is_gated: an MLP has a gate.
        without_effect: keys that only this family ignores.
        not_modelled: keys of this family alone, with their effect.
    """

    defaults: dict[str, Any]
    fixed: dict[str, Any]
    mapped: Mapping[str, MappedWord]
    differs: Mapping[str, str]
    shared_expert: bool
    shared_gate: bool
    router: Mapping[str, str]
    pattern: Callable[[dict[str, Any]], str] | None
    is_gated: bool
    without_effect: frozenset[str]
    not_modelled: Mapping[str, Effect]


_BLOCK_TYPES = {"mamba": MAMBA, "attention": ATTENTION, "mlp": MLP, "moe": EXPERTS}


def _pattern_of_nemotron(config: dict[str, Any]) -> str:
    if isinstance(kinds := config.get("layers_block_type"), list):
        return "".join(_BLOCK_TYPES.get(str(kind), str(kind)[:1]) for kind in kinds)
    return str(config.get("hybrid_override_pattern") or "")


def _family(name: str) -> Family:
    """Return the family of a row, after the families that it is like."""
    row = _FILE.section("families")[name]
    base = _family(row["like"]) if "like" in row else None
    mapped = dict(base.mapped) if base else {}
    for group in row.get("words", ()):
        mapped |= _FILE.words(f"words.{group}")
    for key in row.get("without_words", ()):
        del mapped[key]
    return Family(
        defaults=(base.defaults if base else {}) | row.get("defaults", {}),
        fixed=(base.fixed if base else {}) | row.get("fixed", {}),
        mapped=mapped | _FILE.words(f"families.{name}.own_words"),
        differs=row.get("differs", {}),
        shared_expert=row.get("shared_expert", False),
        shared_gate=row.get("shared_gate", False),
        router=row.get("router", {}),
        pattern=_pattern_of_nemotron if name == "nemotron_h" else None,
        is_gated=row.get("is_gated", True),
        without_effect=frozenset(row.get("without_effect", "").split()),
        not_modelled=_FILE.effects(f"families.{name}.not_modelled"),
    )


FAMILIES = {name: _family(name) for name in _FILE.section("families")}
MISSING = _FILE.section("missing")
"""What simtrain has no blocks for, by model type."""
TEXT_MODELS = _FILE.section("text_models")
"""Types of models that read images too, and the type of the text model in `text_config`."""
GATED_ACTIVATIONS = _FILE.section("gated_activations")
PLAIN_ACTIVATIONS = _FILE.section("plain_activations")
LATENT_FIELDS = tuple(
    word.field.removeprefix("model.")
    for word in _FILE.words("words.latent_attention").values()
    if word.field.startswith("model.latent_attention.")
)
NOT_MODELLED = _FILE.effects("not_modelled")
WITHOUT_EFFECT = _FILE.names("without_effect")


def table_of(family: Family) -> WordTable:
    """Return the table of the configs of a family."""
    return WordTable(
        kind="key",
        source="this model's config",
        mapped={
            key: replace(word, default=family.defaults.get(key))
            for key, word in family.mapped.items()
        },
        not_modelled=NOT_MODELLED | dict(family.not_modelled),
        without_effect=WITHOUT_EFFECT | family.without_effect,
    )
