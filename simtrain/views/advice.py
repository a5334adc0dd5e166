"""Changes that save the most time: `simtrain compare SCENARIO`."""

from __future__ import annotations

from simtrain.studies.advice import Advice
from simtrain.units import counted, format_seconds, gib
from simtrain.views.kinds import GIB, SECONDS, SHARE, TEXT, Kind
from simtrain.views.view import Column, Facts, Headline, Row, Table, View, remarks

_SIGNED_GIB = Kind(lambda num_bytes: f"{'+' if num_bytes >= 0 else '−'}{gib(abs(num_bytes))}")
_COLUMNS = (
    Column("options", "change", TEXT),
    Column("iteration_time_s", "time", SECONDS),
    Column("saved", "saves", SHARE),
    Column("peak_bytes", "peak\nGiB", GIB),
    Column("more_bytes", "memory\nGiB", _SIGNED_GIB, "GiB more or less than without the change"),
)


def advice_view(advice: Advice) -> View:
    """Show the scenario as it is, and each change with its time and its price in memory."""
    fits = "" if advice.fits else ", which does not fit"
    facts = Facts(
        [
            ("scenario", str(advice.scenario)),
            ("iteration time", format_seconds(advice.iteration_time_s)),
            ("peak memory", f"{gib(advice.peak_bytes)} GiB{fits}"),
        ]
    )
    rows = [Row([getattr(change, column.name) for column in _COLUMNS]) for change in advice.advised]
    tried = (
        f"{counted(advice.num_tried, 'change')} on the same GPUs, with the same global batch, were "
        f"simulated one at a time; {advice.num_too_large} of them do not fit."
    )
    words = [tried]
    if not rows:
        words.insert(0, "No single change saves time.")
    changes, line = Table("changes", "", _COLUMNS, rows), Headline(advice.headline)
    return View([facts, changes, remarks(words), line])
