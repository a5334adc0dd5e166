"""The shipped A100 profile, and errors of bad profiles."""

import pathlib
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from simtrain.base.entry import Entry
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from tests.helpers.bad_profiles import BAD_PROFILES, BadProfile
from tests.helpers.toys import a100


def entries(model: BaseModel) -> Iterator[Entry]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Entry):
            yield value
        elif isinstance(value, BaseModel):
            yield from entries(value)


def test_every_entry_of_the_shipped_profile_has_a_source() -> None:
    found = list(entries(a100()))
    assert len(found) >= 35  # the walk reaches every section
    assert all(len(entry.source) > 20 for entry in found)


def refused(profile: str | pathlib.Path) -> str:
    with pytest.raises(InputError) as caught:
        load_profile(profile)
    return str(caught.value)


@pytest.mark.parametrize("case", BAD_PROFILES, ids=lambda case: case.name)
def test_a_bad_profile_is_reported_with_its_line(case: BadProfile, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(case.text, encoding="utf-8")
    message = refused(path)
    assert message.startswith(f"{path}:{case.line}:")
    assert message.splitlines()[1].startswith(f" {case.line} | ")
    for words in case.excerpts:
        assert words in message


def test_an_unknown_name_is_answered_with_a_similar_one() -> None:
    message = refused("a100_sxm_80gb")
    assert 'E101 there is no hardware profile named "a100_sxm_80gb"' in message
    assert "did you mean a100_sxm4_80gb?" in message
