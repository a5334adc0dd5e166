"""The shipped A100 profile, and errors of bad profiles."""

import pathlib
from typing import Any

import pytest
import yaml

from simtrain.base.resources import find_profile
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile


def refused(profile: str | pathlib.Path) -> str:
    with pytest.raises(InputError) as caught:
        load_profile(profile)
    return str(caught.value)


CASES = yaml.safe_load(pathlib.Path(__file__).with_name("bad_profiles.yaml").read_text("utf-8"))
SHIPPED = find_profile("a100_sxm4_80gb").read_text("utf-8")
COLLECTIVES = SHIPPED[SHIPPED.index("collectives:\n") : SHIPPED.index("fused_attention:\n")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_bad_profile_is_reported_with_its_line(
    case: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    old = COLLECTIVES if case["old"] == "collectives" else case["old"]
    assert old in SHIPPED
    text, line = SHIPPED.replace(old, case["new"], 1), 1 + SHIPPED[: SHIPPED.index(old)].count("\n")
    if "at" in case:
        starts = [each.startswith(case["at"]) for each in text.splitlines()]
        line = 1 + starts.index(True)
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    message = refused(path)
    assert message.startswith(f"{path}:{line}:")
    assert message.splitlines()[1].startswith(f" {line} | ")
    for words in case["says"]:
        assert words in message


def test_an_unknown_name_is_answered_with_a_similar_one() -> None:
    message = refused("a100_sxm_80gb")
    assert 'E101 there is no hardware profile named "a100_sxm_80gb"' in message
    assert "did you mean a100_sxm4_80gb?" in message
