"""Shipped models and profiles by the names that tables of runs give to models and machines."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from simtrain.base.resources import list_profiles, list_scenarios
from simtrain.base.strict_yaml import data_of
from simtrain.hardware.load import load_profile
from simtrain.scenario.load import load_unchecked

_SIZES = {
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size"),
    *("kv_channels", "seq_length", "vocab_size", "experts", "latent_attention"),
    *("mtp_num_layers", "attention_window", "full_attention_every"),
}
"""Fields in which models of one family differ."""
GATED_MODEL = "llama2_7b"
"""What a gated model of no known family is taken as."""
_GPU = re.compile(r"g[bh]\d{3}|[abhlv]\d{2,3}|mi\d{3}|trn\d")
_MEMORY = re.compile(r"\b(\d{2,3}) ?gi?b?\b")
_POWER = re.compile(r"(?<![a-z0-9])(\d{3}) ?w\b")
_FORM = re.compile(r"pcie|nvl\b")
_ROUNDED = 0.03
"""Names round the memory of a GPU, in GB or in GiB, by at most this share."""


def model_facts(name: str, *, gated: bool = False) -> tuple[Mapping[str, Any], str]:
    """Return fields of `model`, and which shipped model they are of; nothing for unknown names.

    "Llama-3.1 70B proxy" has all fields of llama3_70b. "Llama2-34B" has those of another llama that
    do not depend on its size, such as the activation. Unknown models that are gated are llamas.
    """
    spelled = [_letters(name), _letters(re.sub(r"(\d)\.\d+", r"\1", name))]
    shipped = [each for each in list_scenarios() if not each.startswith(("table", "dp530b"))]
    exact = [each for each in shipped if any(text.startswith(_letters(each)) for text in spelled)]
    if exact:
        best = max(exact, key=len)
        return _fields(best), best
    family = re.match(r"[a-z]+", spelled[0])
    same = [each for each in shipped if family and re.match(rf"{family[0]}[\d_]", each)]
    of = same[0] if same else GATED_MODEL if gated else ""
    if not of:
        return {}, ""
    return {field: value for field, value in _fields(of).items() if field not in _SIZES}, of


@functools.cache
def _fields(name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = data_of(load_unchecked(name).model, only_set=True)
    return fields


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def profile_named(machine: str) -> str | None:
    """Return the shipped profile of a machine such as "h100-sxm" or "A100 80GB"; None if none is.

    Both must be of the same GPU in the same form. If the machine's name has a memory, the profile
    has it too; and a power, if any profile's name has that. The shortest name is the usual form.
    """
    text, profiles = machine.lower(), list_profiles()
    gpu, form, memory = _found(_GPU, text), _found(_FORM, text), _MEMORY.search(text)
    words = {name: name.replace("_", " ") for name in profiles}
    power = _found(_POWER, text)
    if not any(_found(_POWER, each) == power for each in words.values()):
        power = ""
    candidates = [
        name
        for name in profiles
        if gpu and (_found(_GPU, words[name]), _found(_FORM, words[name])) == (gpu, form)
        if not power or _found(_POWER, words[name]) == power
        if not memory or _has_memory(name, int(memory[1]))
    ]
    return min(candidates, key=lambda name: name.count("_"), default=None)


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[0].replace(" ", "") if match else ""


def _has_memory(profile: str, printed: int) -> bool:
    capacity_bytes = load_profile(profile).gpu.memory_capacity.value
    least, most = capacity_bytes / 2**30 * (1 - _ROUNDED), capacity_bytes / 1e9 * (1 + _ROUNDED)
    return least <= printed <= most
