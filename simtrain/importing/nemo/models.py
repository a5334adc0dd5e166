"""The models that NeMo 2 names: published ones, and GPT and Nemotron (models.toml)."""

from __future__ import annotations

from pathlib import Path

from simtrain.importing.table import WordsFile

_FILE = WordsFile(Path(__file__).with_suffix(".toml"))
MODELS = _FILE.section("published")
"""The name on Hugging Face of each class and version."""


def _arguments(name: str) -> dict[str, object]:
    layers, hidden, ffn, heads, *groups = _FILE.section("sizes")[name]
    sizes = {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
    }
    if groups:
        sizes |= {"group_query_attention": True, "num_query_groups": groups[0]}
    return sizes | dict(_FILE.section("nemotron" if "emotron" in name else "gpt"))


ARGUMENTS = {name: _arguments(name) for name in _FILE.section("sizes")}
"""The arguments of models whose config.json is not published."""
