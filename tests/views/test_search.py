"""A search's answer reads from the top, and marks what may not fit."""

import functools
import re
from typing import Any

import pytest

from simtrain.studies.search.run import SearchResult, search
from simtrain.views.search import MAY_NOT_FIT, search_view
from tests.helpers.search_spaces import every, with_memory

MIB = 2**20


@functools.cache
def searched(**arguments: Any) -> SearchResult:
    """Search with memory in which some layouts surely fit and faster ones may not."""
    explorer, points = every("narrow")
    peaks = sorted({explorer.peak_bytes(point) for point in points})
    scenario = with_memory("narrow", peaks[len(peaks) // 2])
    return search(scenario, 4, top=4, **arguments)


def facts_of(result: SearchResult) -> dict[str, float]:
    """Return the times that the page begins with, by their names."""
    return {name: fact.value for name, fact in search_view(result).parts[1].rows}  # type: ignore


@pytest.mark.slow
def test_exactly_the_rows_that_may_not_fit_are_marked() -> None:
    result = searched()
    view = search_view(result)
    rows = view.tables["layouts"].rows
    layouts = [*result.ranked, *result.faster]
    marked = [MAY_NOT_FIT in row.cells[0].text for row in rows]
    assert marked == [not layout.fit.fits_surely for layout in layouts]
    (note,) = (text for text in view.sentences if "row by row" in text)
    assert len(re.findall(r"\d+%", note)) == sum(marked)
    records = view.tables["layouts"].records()
    assert [record["rank"] for record in records if record["rank"]] == [1, 2, 3, 4]
    assert [record["fit"] != "fits" for record in records] == marked
    is_fastest = result.faster[0].iteration_time_s < result.answer.iteration_time_s
    assert ("Faster, may not fit" in facts_of(result)) == is_fastest


@pytest.mark.slow
def test_a_first_layout_that_may_not_fit_is_called_so() -> None:
    least = min(map(every("narrow")[0].peak_bytes, every("narrow")[1]))
    none_surely = search(with_memory("narrow", least + MIB), 4)
    assert [*facts_of(none_surely)] == ["Best, may not fit"]
    assert any(
        text.startswith("No layout surely fits") for text in search_view(none_surely).sentences
    )
