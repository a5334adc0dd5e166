"""Guests plug in by entry points: without one, the rest still runs."""

import pytest

from tests.helpers.command_line import spawn
from tests.test_architecture import GUESTS, PROJECT

# Imports of the guest fail, and its entry points are gone, as if its folder were deleted.
WITHOUT = """
import sys

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r} or name.startswith({package!r} + "."):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Gone())
from simtrain.base import plug_ins
points = [
    point for point in plug_ins._installed() if not point.value.startswith({package!r} + ".")
]
plug_ins._installed = lambda: points
sys.argv = ["simtrain", *{words!r}]
from simtrain.__main__ import main
main()
"""
COMMANDS = (
    ["--help"],
    ["run", "gpt2_1_5b"],
    ["compare", "gpt2_1_5b", "gpt2_1_5b"],
    ["search", "gpt2_1_5b", "--gpus", "1", "--top", "1"],
    ["show", "scenarios"],
)


@pytest.mark.slow
@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=" ".join(words), marks=pytest.mark.ci if words[0] != "run" else ())
        for words in COMMANDS
    ],
)
def test_without_a_guest_the_rest_runs(guest: str, words: list[str]) -> None:
    done = spawn("-c", WITHOUT.format(package=f"simtrain.guests.{guest}", words=words))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout


def test_every_guest_plugs_in() -> None:
    values = [value for parts in PROJECT["entry-points"].values() for value in parts.values()]
    guests = {value.split(".")[2] for value in values if value.startswith("simtrain.guests.")}
    assert guests == GUESTS.keys()


@pytest.mark.slow
def test_entry_points_name_parts_that_exist() -> None:
    from importlib.metadata import entry_points

    for group, parts in PROJECT["entry-points"].items():
        installed = {point.name: point for point in entry_points(group=group)}
        for name, value in parts.items():
            assert installed[name].value == value, "install again: pip install -e ."
            assert installed[name].load()
