"""The shipped A100 profile, and errors of bad profiles."""

import pathlib
import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from simtrain.base.entry import Entry
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from tests.helpers.bad_profiles import BAD_PROFILES, SHIPPED, BadProfile
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


def test_the_shipped_profile_is_the_papers_machine() -> None:
    profile = a100()
    assert profile.name == "a100_sxm4_80gb"
    assert profile.calibrated
    assert profile.gpu.peak_flops.value == 312e12
    assert profile.gpu.memory_capacity.value == 80 * 2**30
    assert profile.cluster.num_gpus == 560 * 8
    assert profile.adapter_share_bytes_per_s == 25e9


def test_fitted_entries_state_the_errors_of_the_fit() -> None:
    profile = a100()
    for entry in (profile.gemm.mainloop_flops, profile.overlap.slowdown):
        assert re.fullmatch(r"\d+ points, mean \|error\| [\d.]+%, worst [\d.]+%", entry.fitted_on)
    assert profile.gpu.peak_flops.fitted_on is None


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


def test_an_empty_list_of_curves_is_refused(tmp_path: pathlib.Path) -> None:
    curves = re.compile(r"(  all_gather:\n    value:)\n(?:      .*\n)+")
    path = tmp_path / "bad.yaml"
    path.write_text(curves.sub(r"\1 []\n", SHIPPED), encoding="utf-8")
    assert "E207 intra_node.all_gather.value is a list: List should have at least 1" in (
        refused(path)
    )


def test_a_missing_file_is_answered_with_a_similar_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "my_cluster.yaml").write_text(SHIPPED, encoding="utf-8")
    message = refused(tmp_path / "my_clusters.yaml")
    assert f"{tmp_path / 'my_clusters.yaml'}: E101 no such file" in message
    assert f"did you mean {tmp_path / 'my_cluster.yaml'}?" in message


def test_an_unknown_name_is_answered_with_a_similar_one() -> None:
    message = refused("a100_sxm_80gb")
    assert 'E101 there is no hardware profile named "a100_sxm_80gb"' in message
    assert "did you mean a100_sxm4_80gb?" in message
