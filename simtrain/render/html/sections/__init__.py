"""The sections of a report. Each file builds one from the data of the runs."""

from __future__ import annotations

from collections.abc import Callable

from simtrain.render.html.elements import Html, element, joined
from simtrain.render.html.figures import Figures


def of_each_run(runs: Figures, build: Callable[[Figures], Html]) -> Html:
    """Build a part for each run, below the run's name if there are several."""
    if len(runs.value) == 1:
        return build(runs.at(0))
    return joined(*(joined(element("h3", run.at("name").words), build(run)) for run in runs.each()))
