"""Fit the profile of a machine that is like another one but for a few parts.

A file of differences names the profile of the other machine. Entries that it neither gives, scales
nor measures are copied, and each says so: none of them counts as fitted on this machine.
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from calibrate.fit.attention import training_attention
from calibrate.fit.base import Base, Data, published
from calibrate.fit.figures import CollectiveFigures, KernelTimes, TrainingAttentionFigures
from calibrate.fit.kernels import named_kernels
from calibrate.fit.links import fit_curves
from calibrate.fit.result import Fit, profile_of
from simtrain.base.accuracy import ErrorTable
from simtrain.base.entry import Positive, Strict, Text
from simtrain.base.strict_yaml import YamlDocument, validate
from simtrain.errors import InputError


class Scaling(Strict):
    """Entries, or sections of entries, that are a factor times those of the base; and why."""

    entries: list[Text] = Field(min_length=1)
    factor: Positive
    why: Text


class Differences(Strict):
    """How a machine differs from that of the profile `base`.

    Args:
        version: version of this schema.
        name: name of the profile.
        description: the machine in words.
        base: profile of the other machine.
        why: why entries of `base` hold for this machine too, or nearly.
        entries: entries of this machine, nested as in a profile, each with its source.
        scaled: entries that follow from those of `base`.
        left_out: entries and sections of `base` that this machine lacks.
        kernels: kernels measured on this machine.
        collectives: collectives measured in a node; other sizes of groups are copied.
        fused_attention: attention measured on this machine.
    """

    version: Literal[1]
    name: Text
    description: Text
    base: Text
    why: Text
    entries: dict[str, Any]
    scaled: list[Scaling] = Field(default_factory=list)
    left_out: list[Text] = Field(default_factory=list)
    kernels: list[KernelTimes] = Field(default_factory=list)
    collectives: CollectiveFigures | None = None
    fused_attention: TrainingAttentionFigures | None = None


def fit_differences(document: YamlDocument) -> Fit:
    """Fit what was measured, and complete it with the base.

    Raises:
        InputError: there is no such base, a value is outside its range, or a name is no entry.
    """
    machine = validate(Differences, document.data, document.positions)
    base = Base.load(machine.base)
    data: Data = base.copied(_without_fits(base.data), machine.why)
    data |= {"name": machine.name, "description": machine.description}
    for scaling in machine.scaled:
        for name in scaling.entries:
            section, last = _place(data, name)
            original, _ = _place(base.data, name)
            section[last] = _scaled(original[last], scaling, base.profile.name)
    for name in machine.left_out:
        section, last = _place(data, name)
        del section[last]
    data = _with_entries(data, machine.entries)
    shown = [*_add_kernels(machine, data), *_add_collectives(machine, data)]
    if machine.fused_attention:
        attention, comparisons = training_attention(machine.fused_attention, profile_of(data))
        data["fused_attention"] = attention
        shown += comparisons
    return Fit(data, shown)


def _add_kernels(machine: Differences, data: Data) -> Iterator[ErrorTable]:
    profile = profile_of(data)
    memory = profile.gpu.memory_bandwidth.value
    latency_s = profile.memory_bound.kernel_latency.value
    for name, way, entry, comparison in named_kernels(machine.kernels, memory, latency_s):
        data["memory_bound"]["kernels"].setdefault(name, {})[way] = entry
        yield comparison


def _add_collectives(machine: Differences, data: Data) -> Iterator[ErrorTable]:
    """Replace the curves of groups up to the largest measured one; yield their errors."""
    if machine.collectives is None:
        return
    bandwidth = profile_of(data).links.bandwidth.value
    for kind, figures in machine.collectives.curves.items():
        curves, comparison = fit_curves(figures, kind, bandwidth)
        before = data["intra_node"][kind.value]
        largest = max(curve["num_ranks"] for curve in curves)
        kept = [curve for curve in before["value"] if curve["num_ranks"] > largest]
        entry = published(machine.collectives.source, comparison)([*curves, *kept])
        if kept:
            sizes = ", ".join(str(curve["num_ranks"]) for curve in kept)
            entry["source"] += f"; {sizes} ranks: {before['source']}"
        data["intra_node"][kind.value] = entry
        yield comparison


def _without_fits(data: Any) -> Any:
    """The same data without what its entries were fitted on: that was another machine."""
    if not isinstance(data, dict):
        return data
    return {name: _without_fits(item) for name, item in data.items() if name != "fitted_on"}


def _place(data: Data, name: str) -> tuple[Data, str]:
    """The section of an entry with a dotted name, and the entry's name in it."""
    *sections, last = name.split(".")
    section: Any = data
    for part in sections:
        section = section.get(part, {})
    if last not in section:
        fix = f"write one of {', '.join(section) or 'the entries of the base'}"
        raise InputError.of("E205", f"{name} is no entry of the base", fix=fix)
    return section, last


def _scaled(data: Data, scaling: Scaling, base: str) -> Data:
    """The entries of a section, or one entry, times a factor."""
    if "source" not in data:
        return {name: _scaled(item, scaling, base) for name, item in data.items()}
    number, _, unit = str(data["value"]).partition(" ")
    value = float(f"{float(number) * scaling.factor:.4g}")
    source = f"scaled from {base} by {scaling.factor:g}, {scaling.why}: {data['source']}"
    return {"value": f"{value:g} {unit}" if unit else value, "source": source}


def _with_entries(data: Data, entries: Data) -> Data:
    merged = dict(data)
    for name, item in entries.items():
        is_section = isinstance(item, dict) and "value" not in item
        merged[name] = _with_entries(data.get(name) or {}, item) if is_section else item
    return merged
