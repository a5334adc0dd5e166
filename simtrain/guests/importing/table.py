"""The table of a source: what becomes of each of its words; it is read from a TOML file.

All importers have one of this form:

    without_effect = "seed save_interval ..."    # words that change neither time nor memory

    [fields]                                     # words that set a field
    hidden_size = "model.hidden_size"
    mtp_num_layers = {field = "model.mtp_num_layers", default = 0}
    normalization = {field = "model.normalization", values = {RMSNorm = "rms_norm"}}

    [not_modelled]                               # the effect of words that are not modelled
    use_sharp = "switches reduce in the network: faster collectives"
    fp8_wgrad = {text = "weight gradients in bf16: slower", neutral = ["True"]}

A list of `values` has those whose names are ours too. Entries of a field are those of `MappedWord`,
entries of an effect those of `Effect`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from simtrain.guests.importing.settings import Effect


@dataclasses.dataclass(frozen=True, slots=True)
class MappedWord:
    """A word of a source that sets a field.

    Args:
        field: dotted name of the field that it sets, alone or together with other words.
        default: its value in a source without it; None if there is none, or if it depends on other
            words.
        values: our value for each value of the source, if only these are modelled.
        sets: the value of the field that a flag stands for.
        inverted: whether a flag means the opposite of the field.
    """

    field: str
    default: Any = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sets: Any = None
    inverted: bool = False

    @property
    def our_default(self) -> Any:
        return self.values[self.default] if self.values and self.default else self.default

    def word_for(self, ours: Any) -> Any:
        """Return the source's value for ours; None if it has none, or says it by saying nothing."""
        if self.sets is not None:
            theirs: Any = ours == self.sets
        elif self.inverted:
            theirs = not ours
        elif self.values:
            same = [theirs for theirs, each in self.values.items() if each == ours]
            theirs = same[0] if same else None
        else:
            theirs = ours
        is_silent = isinstance(theirs, bool) or not theirs
        return None if is_silent and theirs == self.default else theirs


@dataclasses.dataclass(frozen=True)
class WordTable:
    """The words of a source. Each is mapped, not modelled, a detail of another, or without effect.

    Args:
        kind: what errors call a word, such as "argument".
        source: what it is a word of, such as "Megatron-LM".
        mapped: the words that set fields.
        not_modelled: the effect of each word that has one which is not modelled.
        without_effect: words that affect neither the time nor the memory of an iteration.
        details: words that only refine another one.
        sections: sections ("job" of "job.dump_folder") whose other words have no effect alone.
    """

    kind: str
    source: str
    mapped: Mapping[str, MappedWord]
    not_modelled: Mapping[str, Effect] = dataclasses.field(default_factory=dict)
    without_effect: frozenset[str] = frozenset()
    details: frozenset[str] = frozenset()
    sections: frozenset[str] = frozenset()

    @cached_property
    def words(self) -> frozenset[str]:
        return self.without_effect.union(self.mapped, self.not_modelled, self.details)

    def __contains__(self, name: str) -> bool:
        return name in self.words or name.partition(".")[0] in self.sections


Row = TypeVar("Row", MappedWord, Effect)


class WordsFile:
    """A file of words."""

    def __init__(self, file: Path) -> None:
        self.rows: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))

    def table(self, **changes: Any) -> WordTable:
        """Return the table of the file.

        Args:
            changes: arguments of `WordTable` that follow from more than the file.
        """
        not_modelled = self.effects("not_modelled")
        arguments: dict[str, Any] = {
            "kind": self.rows.get("kind", "key"),
            "source": self.rows.get("source", ""),
            "mapped": self.words("fields"),
            "not_modelled": not_modelled,
            "without_effect": self.names("without_effect"),
            "details": details_of(not_modelled),
            "sections": self.names("sections_without_effect"),
        } | changes
        return WordTable(**arguments)

    def words(self, section: str) -> dict[str, MappedWord]:
        """Return the words of a section that set fields."""
        return {name: _row(row, MappedWord) for name, row in self.section(section).items()}

    def effects(self, section: str) -> dict[str, Effect]:
        """Return the effects of the words of a section."""
        return {name: _row(row, Effect) for name, row in self.section(section).items()}

    def names(self, section: str) -> frozenset[str]:
        """Return the words of a text, which blanks separate."""
        return frozenset(str(self.rows.get(section, "")).split())

    def section(self, name: str) -> dict[str, Any]:
        """Return the rows of a section ("a.b" for one inside another); none if it is not there."""
        section = self.rows
        for part in name.split("."):
            section = section.get(part, {})
        return section


def _row(row: Any, kind: type[Row]) -> Row:
    """Return a row, which has the main entry alone or several entries."""
    entries = dict(row) if isinstance(row, dict) else {dataclasses.fields(kind)[0].name: row}
    if isinstance(values := entries.get("values"), list):
        entries["values"] = {value: value for value in values}
    lists = {key: tuple(each) for key, each in entries.items() if key in ("neutral", "active")}
    return kind(**entries | lists)


def details_of(effects: Mapping[str, Effect]) -> frozenset[str]:
    """Return the words that only refine another one."""
    return frozenset(detail for effect in effects.values() for detail in effect.details.split())
