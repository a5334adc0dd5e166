"""What `simtrain explain SCENARIO FIGURE` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from simtrain.iteration.report.operators import Operator, Source
from simtrain.iteration.report.origins import Explained, Origin
from simtrain.render.pages.operators_page import rate_of
from simtrain.units import format_bytes, format_seconds, four_digits

_LEAST_PART = 0.005
"""Parts below this one are not shown."""


def origins_page(explained: Explained, profile: str) -> RenderableType:
    """The figure, what it is computed from, and the profile entries with their sources."""
    tree = Tree(_line(explained.origin, explained.origin))
    _grow(tree, explained.origin, explained.origin)
    page: list[RenderableType] = [Text(f"{explained.scenario}:"), tree]
    if explained.sources:
        entries = Tree(Text(f"Entries of the hardware profile {profile}"))
        for one in explained.sources.values():
            entries.add(_value_line(one)).add(_source_line(one))
        page += ["", entries]
    return Group(*page)


def _grow(tree: Tree, origin: Origin, whole: Origin) -> None:
    """Add the parts of an origin, with their shares of a whole of the same unit."""
    for part in origin.parts:
        of = whole if part.unit == whole.unit else part
        branch = tree.add(_line(part, of))
        shares = {name: share for name, share in part.entries.items() if share >= _LEAST_PART}
        if shares:
            words = ", ".join(f"{name} ({share:.0%})" for name, share in shares.items())
            branch.add(Text(f"from {words}", style="dim"))
        _grow(branch, part, of)


def _line(origin: Origin, whole: Origin) -> Text:
    text = Text.assemble((origin.name, "bold"), " = ", _value(origin))
    if origin.unit and origin is not whole:
        text.append(f" ({origin.value / whole.value:.1%})")
    remark = _about(origin.operator) if origin.operator else origin.remark
    if remark:
        text.append(f": {remark}")
    return text


def _value(origin: Origin) -> str:
    match origin.unit:
        case "s":
            return format_seconds(origin.value)
        case "B":
            return format_bytes(origin.value)
        case "FLOP" | "FLOP/s":
            return f"{origin.value:.4g} {origin.unit}"
    return f"{origin.value:.1%}" if origin.value < 1 else f"{origin.value:,.0f}"


def _about(row: Operator) -> str:
    rate = rate_of(row)
    words = [f"{row.count:,} × {row.shape}", *([rate] if rate else [])]
    if row.bottleneck:
        words.append(f"limited by {row.bottleneck.limit}")
    if row.basis == "extrapolated":
        words.append("extrapolated: outside the range that the profile was fitted on")
    return ", ".join(words)


def _value_line(one: Source) -> Text:
    return Text.assemble((one.entry, "bold"), f" = {shown_value(one.entry, one.value)}")


def _source_line(one: Source) -> Text:
    return Text(one.source + (f"; fitted on {one.fitted_on}" if one.fitted_on else ""))


def shown_value(name: str, value: Any) -> str:
    """An entry's value with its unit, which follows from its name."""
    last = name.rpartition(".")[2]
    if not isinstance(value, float | int):
        return f"{len(value)} rows, listed by simtrain profile show"
    if last.endswith("_flops"):
        return f"{four_digits(value / 1e12)} TFLOP/s"
    if last == "issue" or last.endswith(("latency", "overhead")):
        return format_seconds(value)
    if last in ("allocator_reserve", "memory_capacity") or last.endswith("workspace"):
        return format_bytes(value)
    if last.endswith("bandwidth") or name.startswith("memory_bound.kernels."):
        return f"{four_digits(value / 1e9)} GB/s"
    return four_digits(value)
