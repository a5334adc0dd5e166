"""The table of a source: what becomes of each of its words. All importers have one of this form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from simtrain.importing.settings import Effect


@dataclasses.dataclass(frozen=True, slots=True)
class MappedWord:
    """A word of a source that sets a field.

    Args:
        field: dotted name of the field that it sets, alone or together with other words.
        default: its value in a source without it; None if there is none, or if it depends on other
            words.
        values: our value for each value of the source, if only these are modelled.
    """

    field: str
    default: Any = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def our_default(self) -> Any:
        """Our value for the default."""
        return self.values[self.default] if self.values and self.default else self.default


@dataclasses.dataclass(frozen=True)
class WordTable:
    """The words of a source. Each is mapped, not modelled, a detail of another, or without effect.

    Args:
        kind: what errors call a word, such as "argument".
        source: what it is a word of, such as "Megatron-LM".
        mapped: the words that set fields.
        not_modelled: the effect of each word that has one which is not modelled.
        without_effect: words that affect neither the time nor the memory of an iteration.
        details: words that only refine another one, each with that one.
        sections: sections ("job" of "job.dump_folder") whose other words refine one word, with that
            word, or are without effect, with "".
    """

    kind: str
    source: str
    mapped: Mapping[str, MappedWord]
    not_modelled: Mapping[str, Effect] = dataclasses.field(default_factory=dict)
    without_effect: frozenset[str] = frozenset()
    details: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sections: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @cached_property
    def words(self) -> frozenset[str]:
        """All words, without those of `sections`."""
        return self.without_effect.union(self.mapped, self.not_modelled, self.details)

    def __contains__(self, name: str) -> bool:
        """Whether the table has a word."""
        return name in self.words or name.partition(".")[0] in self.sections

    def refined_by(self, name: str) -> str:
        """Return the word that a word only refines, or ""."""
        return self.details.get(name) or self.sections.get(name.partition(".")[0], "")


def as_they_are(*values: str) -> dict[str, str]:
    """Return the values of a word whose values are ours too."""
    return {value: value for value in values}
