"""Columns of tables of measured runs: how their cells read; `aliases.toml` has their names.

A cell without text was not printed. A remark in parentheses after a value is left out.
"""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

from simtrain.studies.validation.measured import PeakOf

Fields = dict[str, Any]
"""Values by the fields of a scenario."""

ALIASES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text("utf-8"))
KINDS = ("counts", "switches", "words", "texts")
COLUMN_OF: dict[str, tuple[str, str]] = {
    name: (kind, what) for kind in KINDS for what, names in ALIASES[kind].items() for name in names
}
"""By the name of a column, its kind and the field that it sets."""
TEXTS: dict[str, list[str]] = ALIASES["texts"]
SECONDS: dict[str, float] = ALIASES["seconds"]
BYTES: dict[str, float] = ALIASES["bytes"]
MEASURED = frozenset((*SECONDS, *BYTES, *TEXTS["tokens_per_s_per_gpu"], *TEXTS["outcome"]))
"""Columns of what was measured."""
PEAK_OF = {
    "mem_max_allocated_bytes": PeakOf.LAST_STAGE,
    "max_allocated_bytes": PeakOf.TENSORS,
    "max_memory_allocated": PeakOf.TENSORS,
}
"""What the columns of peaks are of that are not of all memory in use."""
NOT_PRINTED = re.compile(r"not printed|recipe default", re.IGNORECASE)
"""Cells that say that their value is not known."""
OUT_OF_MEMORY = frozenset({"oom", "out of memory", "out_of_memory", "does_not_fit"})
_SWITCHES = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "0"), False
)
_SHARDING = re.compile(
    r"(?P<stage>[0-3]|none)(?: over all DP ranks| within groups of (?P<group>\d{1,9}))?"
)


class UnreadableCell(Exception):
    """A cell has no value of its column; the message says what it must be."""


def integer(text: str) -> int:
    """Read a whole number from 1: "64", "8,192", "8.0"."""
    number = _number(text)
    if number is None or number < 1 or number != int(number):
        raise UnreadableCell("must be a whole number from 1")
    return int(number)


def positive(text: str) -> float:
    """Read a number above 0."""
    number = _number(text)
    if number is None or number <= 0:
        raise UnreadableCell("must be a number above 0")
    return number


def switch(text: str) -> bool:
    """Read true or false."""
    if text.lower() not in _SWITCHES:
        raise UnreadableCell("must be true or false")
    return _SWITCHES[text.lower()]


def fields_of(name: str, text: str) -> Fields:
    """Return the fields that a cell sets; none for columns that the row itself reads.

    Raises:
        UnreadableCell: the text is no value of the column.
    """
    kind, field = COLUMN_OF[name]
    if field == "memory.zero_stage" and kind == "texts":
        return _sharding(text)
    text = without_remark(text)
    if kind == "texts":
        return {field: text} if field == "software.stack" else {}
    if kind == "counts":
        return {field: integer(text)}
    if kind == "switches":
        value: bool | str = switch(text)
        word = str(value).lower()
    else:
        word = text.lower()
        if not re.fullmatch(r"[\w-]+", word):
            raise UnreadableCell("must be one word")
        value = word.replace("-", "_")
    meant: Fields | None = ALIASES["meanings"].get(field, {}).get(word)
    return meant or {field: value}


def _number(text: str) -> float | None:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _sharding(text: str) -> Fields:
    """Read a ZeRO stage, and what its remark says about overlap.

    Remarks: "1 (overlap grad reduce)", "3 (FSDP2)".
    """
    value, _, remark = text.partition("(")
    match = _SHARDING.fullmatch(value.strip())
    if match is None:
        raise UnreadableCell("must be a stage from 0 to 3, such as 1 or 1 within groups of 8")
    fields: Fields = {"memory.zero_stage": 0 if match["stage"] == "none" else int(match["stage"])}
    if match["group"]:
        fields["memory.shard_over"] = int(match["group"])
    # FSDP always gathers and reduces beside other layers' products.
    if "overlap grad reduce" in remark or "FSDP" in remark:
        fields["overlap.data_parallel"] = True
    if "overlap" in remark and "param gather" in remark:
        fields["overlap.parameter_gather"] = True
    return fields


def spelled(heading: str) -> str:
    """Return a heading as the names of columns are spelled: "# GPUs" is gpus."""
    if "." in heading and " " not in heading.strip():
        return heading.strip()
    return re.sub(r"[^a-z0-9]+", "_", heading.lower()).strip("_")


def without_remark(text: str) -> str:
    """Return a cell without a remark in parentheses at its end."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", text).strip()
