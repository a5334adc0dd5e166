"""What a figure shows, as text: each artist with its place, style and words."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

_SAID = (
    "text xydata bbox offsets paths position fontsize fontweight color facecolor edgecolor "
    "array visible linewidth linestyle marker markersize hatch alpha zorder "
    "bbox_to_anchor rasterized ha va rotation"
)


def _plain(value: Any) -> str:
    """Write numbers with four digits."""
    if hasattr(value, "bounds"):
        value = value.bounds
    if isinstance(value, str | None):
        return repr(value and str(value))
    if isinstance(value, list) and value and hasattr(value[0], "vertices"):
        value = np.concatenate([path.vertices for path in value])[:8]
    try:
        numbers = np.ravel(np.ma.filled(np.ma.asarray(value, float), np.nan))[:24]
        return "[" + " ".join(f"{each:.4g}" for each in numbers * (np.abs(numbers) > 1e-9)) + "]"
    except (TypeError, ValueError):
        return str(value) if isinstance(value, tuple | list) else type(value).__name__


def artists_of(figure: Figure) -> Iterator[str]:
    """Yield a line for each axis and each artist of a figure."""
    yield _plain(figure.get_size_inches())
    for shown in (*figure.texts, *(each for box in figure.legends for each in box.get_texts())):
        place = *shown.get_position(), shown.get_fontsize()
        yield f"  {shown.get_text()!r} {_plain(place)}"
    for box in (*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))):
        yield f"  legend of {box._ncols} columns with frame {_plain(box.get_frame().get_alpha())}"
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [label.get_text() for label in axis.get_ticklabels()]
            grid = _plain([line.get_linewidth() for line in axis.get_gridlines()[:1]])
            yield f"{axis.get_label_text()!r} {_plain(axis.get_view_interval())} {ticks} {grid}"
        for artist in axes.get_children():
            said = {name: getattr(artist, f"get_{name}", None) for name in _SAID.split()}
            words = " ".join(f"{name}={_plain(get())}" for name, get in said.items() if get)
            yield f"  {type(artist).__name__} {words}"
