"""Releases of a software stack: entries that its file has from a release on, for some runs.

A reference names a stack (`megatron_bridge`, which means its newest release) or one of its releases
(`megatron_bridge@25.11`). The file of a stack lists sections of entries, oldest release first. As
of a release, the entries of all sections up to it hold, later ones in place of earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from simtrain.base.entry import Count, Strict, Text
from simtrain.base.strict_yaml import Positions, YamlDocument, validate
from simtrain.base.strict_yaml.document import Path, Place, dotted
from simtrain.errors import InputError

SEPARATOR = "@"
RELEASES = "releases"
"""Name of the list of sections in the file of a stack."""
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})*")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What of a run decides which entries of a release hold for it.

    Args:
        cluster: the name of its hardware profile.
        has_experts: whether its model has experts.
        in_pipeline: whether pipeline stages divide its model.
        recipe: how its products are cast to fp8 or fp4; "" if they are not.
        has_adapters: whether it trains adapters alone.
        hidden_size: of its model.
    """

    cluster: str
    has_experts: bool
    in_pipeline: bool
    recipe: str
    has_adapters: bool = False
    hidden_size: int = 0


class When(Strict):
    """The runs for which a section holds: those that meet all conditions that it has."""

    clusters: list[Text] | None = None
    experts: bool | None = None
    pipeline: bool | None = None
    recipes: list[Text] | None = None
    adapters: bool | None = None
    max_hidden_size: Count | None = None

    def holds_for(self, run: Circumstances) -> bool:
        """Whether a run meets all conditions."""
        return (
            (self.clusters is None or run.cluster in self.clusters)
            and self.experts in (None, run.has_experts)
            and self.pipeline in (None, run.in_pipeline)
            and (self.recipes is None or run.recipe in self.recipes)
            and self.adapters in (None, run.has_adapters)
            and (self.max_hidden_size is None or run.hidden_size <= self.max_hidden_size)
        )


class _File(Strict):
    """The list of sections."""

    releases: list[dict[str, Any]]


class _Labels(Strict):
    """What a section has besides entries: its release, and the runs for which it holds."""

    release: Text
    when: When | None = None


def split_reference(reference: str) -> tuple[str, str]:
    """Return the stack that a reference names, and the release; "" is the newest."""
    name, _, release = reference.partition(SEPARATOR)
    return name, release


def known_releases(document: YamlDocument) -> tuple[str, ...]:
    """Return the releases that the file of a stack has sections for, oldest first.

    Raises:
        InputError: a section has no release, or an older one than the section before it.
    """
    return tuple(dict.fromkeys(labels.release for labels, _ in _sections(document)))


def latest_until(release: str, known: Sequence[str]) -> str | None:
    """Return the newest known release that is not newer than `release`.

    Return None if `release` is no number, or if it is older or newer than all known ones.
    """
    if not known or not _NUMBER.fullmatch(release) or _number(release) > _number(known[-1]):
        return None
    return next((each for each in reversed(known) if _number(each) <= _number(release)), None)


def as_of(document: YamlDocument, last: str | None, run: Circumstances | None) -> YamlDocument:
    """Return the file of a stack as of a release, for a run, without its sections of releases.

    Args:
        document: the file, with the entries of its base.
        last: a known release; None if the file has none.
        run: the run. For None, sections with conditions do not count.
    """
    places = dict(document.positions.places)
    data = {name: value for name, value in document.data.items() if name != RELEASES}
    for labels, entries in _sections(document):
        if last is None or _number(labels.release) > _number(last):
            break
        if labels.when and not (run and labels.when.holds_for(run)):
            continue
        # A whole entry replaces an older one: a value and its source stay together.
        data |= entries.data
        places = {path: place for path, place in places.items() if path[:1] not in _tops(entries)}
        places |= entries.positions.places
    return YamlDocument(data, Positions(places))


def _sections(document: YamlDocument) -> Iterator[tuple[_Labels, YamlDocument]]:
    """Yield the labels of each section, and its entries with their positions."""
    before: tuple[int, ...] = ()
    data = {RELEASES: document.data.get(RELEASES, [])}
    for index, content in enumerate(validate(_File, data, document.positions).releases):
        places = {
            path[2:]: place
            for path, place in document.positions.places.items()
            if path[:2] == (RELEASES, index)
        }
        place = places[()].value
        places[()] = Place(place, place)  # a missing release is missing in this section
        names = [name for name in _Labels.model_fields if name in content]
        labels = validate(
            _Labels,
            {name: content[name] for name in names},
            Positions(places),
            partial(_spell, index),
        )
        is_number = _NUMBER.fullmatch(labels.release)
        if not is_number or _number(labels.release) < before:
            message = f"releases: {labels.release} is no number, or older than the one before it"
            fix = 'write releases as numbers such as "26.02.01", the oldest first'
            raise InputError.of("E206", message, places["release",].value, fix)
        before = _number(labels.release)
        entries = {name: value for name, value in content.items() if name not in names}
        inside = {path: place for path, place in places.items() if path and path[0] in entries}
        yield labels, YamlDocument(entries, Positions(inside))


def _tops(document: YamlDocument) -> set[tuple[str, ...]]:
    return {(name,) for name in document.data}


def _spell(index: int, path: Path) -> str:
    return dotted((RELEASES, index, *path))


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
