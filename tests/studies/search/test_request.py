"""A search is asked for by one value: Python's arguments are its fields, checked in one place."""

import inspect

import pytest

from simtrain.base.request import descriptions_of
from simtrain.errors import InputError
from simtrain.studies.search.request import SearchRequest
from simtrain.studies.search.run import search
from tests.helpers.search_spaces import BASES


def test_every_argument_is_described_where_it_is_declared() -> None:
    described = descriptions_of(SearchRequest)
    assert [*inspect.signature(search).parameters] == [*described]
    assert all(text in " ".join((search.__doc__ or "").split()) for text in described.values())


def test_a_request_reports_all_wrong_counts_at_once() -> None:
    request = SearchRequest(BASES["narrow"], (4, 0), top=0, workers=0, context=())
    with pytest.raises(InputError) as caught:
        request.check()
    assert [problem.code for problem in caught.value.problems] == ["E834"] * 4
