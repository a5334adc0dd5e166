"""Errors of measured iterations that profiles state, compared with docs/validation_details.md."""

import pathlib
import re
import shutil

import pytest

from simtrain.base.resources import find_profile, list_profiles
from simtrain.errors import InputError
from simtrain.hardware.evidence import validated_on
from tests.helpers.command_line import ROOT, call

PAGE = (ROOT / "docs/validation_details.md").read_text("utf-8")


def text(share: float, digits: int) -> str:
    return f"{share:.{digits}%}".replace("-", "−").replace("%", " %")


def test_the_errors_are_those_of_the_page_on_validation() -> None:
    errors = validated_on("a100_sxm4_80gb")
    assert errors
    table5, parallel, nodes, node, *_ = errors.measured_runs
    assert f"\n{text(table5.mean_error, 1)} = table5_error mean\n" in PAGE
    assert f"\n{text(-table5.worst_error, 1)} = table5_error largest\n" in PAGE
    assert f"\n{text(parallel.worst_error, 2)} = dp530b error\n" in PAGE
    for runs, row in ((nodes, "several nodes"), (node, "one node, the others")):
        (cells,) = re.findall(rf"^\| {row} \| (.*) \|$", PAGE, re.MULTILINE)
        number, of_paper, _, worst_of_paper, mean, _, worst = cells.split(" | ")
        assert number == str(runs.num_runs)
        assert (mean, worst) == (text(runs.mean_error, 1), text(runs.worst_error, 0))
        remark = runs.remark.replace("-", "−")
        assert of_paper in remark and worst_of_paper in remark


def test_calibrated_profiles_say_what_they_were_compared_with() -> None:
    found = {name: validated_on(name) for name in list_profiles()}
    for one in found.values():
        assert one and (one.measured_runs or one.summary.startswith("Not yet compared with"))
        assert "none of Megatron" not in one.summary
    assert "Not yet compared with measured layers" in call("profile", "show", "trn1").stdout
    assert "mean |error| 1.0%, worst -2.1%" in " ".join(
        call("profile", "show", "a100_sxm4_80gb").stdout.split()
    )


def test_a_users_profile_can_have_a_file_of_errors(tmp_path: pathlib.Path) -> None:
    own = tmp_path / "own.yaml"
    shutil.copy(find_profile("h100_sxm"), own)
    assert validated_on(str(own)) is None
    errors = tmp_path / "validated_on" / "own.yaml"
    errors.parent.mkdir()
    errors.write_text("version: 2\nsummary: ours\nmeasured_runs: []\n", "utf-8")
    found = validated_on(str(own))
    assert found and found.summary == "ours"
    errors.write_text("version: 2\nsummary: ours and others\nmeasured_runs: 3\n", "utf-8")
    with pytest.raises(InputError, match="measured_runs"):
        validated_on(str(own))
