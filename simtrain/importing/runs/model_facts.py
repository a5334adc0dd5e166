"""What a table of runs does not say of a model, from the shipped model of its name."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from simtrain.base.resources import list_scenarios
from simtrain.base.strict_yaml import data_of
from simtrain.scenario.load import load_unchecked

_SIZES = {
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size"),
    *("kv_channels", "seq_length", "vocab_size", "experts", "latent_attention"),
    *("mtp_num_layers", "attention_window", "full_attention_every"),
}
"""Fields in which models of one family differ."""


def model_facts(name: str) -> tuple[Mapping[str, Any], str]:
    """Return fields of `model`, and which shipped model they are of; nothing for unknown names.

    "Llama-3.1 70B proxy" has all fields of llama3_70b. "Llama2-34B" has those of another llama that
    do not depend on its size, such as the activation. A gated model of no known family is taken as
    a llama by `gated_facts`.
    """
    spelled = [_letters(name), _letters(re.sub(r"(\d)\.\d+", r"\1", name))]
    exact = [
        shipped
        for shipped in _shipped()
        if any(text.startswith(_letters(shipped)) for text in spelled)
    ]
    if exact:
        return _fields(max(exact, key=len)), max(exact, key=len)
    family = re.match(r"[a-z]+", spelled[0])
    same = [shipped for shipped in _shipped() if family and re.match(rf"{family[0]}[\d_]", shipped)]
    return (_of_family(same[0]), same[0]) if same else ({}, "")


def gated_facts() -> tuple[Mapping[str, Any], str]:
    """Return the fields that gated models share, those of llama2_7b, and its name."""
    return _of_family("llama2_7b"), "llama2_7b"


@functools.cache
def _shipped() -> list[str]:
    return [name for name in list_scenarios() if not name.startswith(("table", "dp530b"))]


@functools.cache
def _fields(name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = data_of(load_unchecked(name).model, only_set=True)
    return fields


def _of_family(name: str) -> Mapping[str, Any]:
    return {field: value for field, value in _fields(name).items() if field not in _SIZES}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
