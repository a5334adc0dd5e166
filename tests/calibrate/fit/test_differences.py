"""Profiles of machines that differ from another one in a few parts."""

import pathlib
import re

import pytest

from calibrate.fit.published import fit_figures
from calibrate.fit.result import profile_text
from simtrain.base.resources import find_profile
from simtrain.hardware.entries import entries_of
from simtrain.hardware.load import load_profile
from tests.helpers.command_line import ROOT

FOLDER = ROOT / "calibrate/published"
BASES = {
    path.stem: base[1]
    for path in sorted(FOLDER.glob("*.yaml"))
    if (base := re.search(r"^base: (\w+)$", path.read_text("utf-8"), re.MULTILINE))
}
FILE = """\
version: 1
name: other
description: another H100
base: h100_sxm
why: "it is nearly the same"
entries:
  gpu: {memory_capacity: {value: 94 GB, source: a test}}
"""


def fitted(tmp_path: pathlib.Path, text: str) -> dict[str, object]:
    """Fit a file of differences; return its entries by name."""
    file = tmp_path / "other.yaml"
    file.write_text(text, "utf-8")
    return dict(entries_of(fit_figures(file).profile))


@pytest.mark.parametrize("name", BASES)
def test_the_shipped_profile_is_the_fit(name: str) -> None:
    figures = f"calibrate/published/{name}.yaml"
    text = profile_text(dict(fit_figures(ROOT / figures).data), figures)
    assert text == find_profile(name).read_text("utf-8")


@pytest.mark.parametrize("name", BASES)
def test_an_entry_is_its_own_or_names_the_machine_that_it_comes_from(name: str) -> None:
    """Other entries are fitted on this machine, or their sources are in the figures."""
    base = dict(entries_of(load_profile(BASES[name])))
    typed = (FOLDER / f"{name}.yaml").read_text("utf-8")
    for path, entry in entries_of(load_profile(name)):
        origin = f"copied from {BASES[name]}, ", f"scaled from {BASES[name]} by "
        if entry.source.startswith(origin):
            assert entry.fitted_on is None
            assert entry.source.endswith(base[path].source)
        elif path != "fused_attention.valid_shapes":
            assert entry.fitted_on or entry.source in typed


def test_other_entries_are_copied_and_none_counts_as_fitted(tmp_path: pathlib.Path) -> None:
    entries, base = fitted(tmp_path, FILE), dict(entries_of(load_profile("h100_sxm")))
    changed = {name for name, entry in entries.items() if entry.value != base[name].value}
    assert changed == {"gpu.memory_capacity"}
    assert entries["gemm.tiles"].source.startswith("copied from h100_sxm, it is nearly the same: ")
    assert not any(entry.fitted_on for entry in entries.values())
