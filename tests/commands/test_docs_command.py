"""Documents that `simtrain show` prints; installed texts name only those that are installed."""

import pathlib
import re
import tomllib

import pytest

from simtrain.base.extras import EXTRA_OF
from simtrain.commands.show import REFERENCES, document_titles
from tests.helpers.command_line import ROOT, call, refused, spawn

INSTALLED = ("simtrain", "calibrate", "hw_profiles", "scenarios", "software_stacks", "sweeps")
SUFFIXES = (".py", ".yaml", ".toml", ".js")


def installed_texts() -> dict[pathlib.Path, str]:
    files = (path for folder in INSTALLED for path in (ROOT / folder).rglob("*"))
    return {path: path.read_text(encoding="utf-8") for path in files if path.suffix in SUFFIXES}


def test_installed_texts_name_documents_by_the_command_that_prints_them() -> None:
    """Docstrings for developers may name files of the clone."""
    named = set()
    for path, text in installed_texts().items():
        mentions = [name for name in document_titles() if f"docs/{name}.md" in text]
        assert not mentions or path.name in ("explanations.py", "views.py"), (path, mentions)
        named |= {*re.findall(r"simtrain show ([a-z][a-z0-9_/]*)", text)}
    assert {"tutorial", "validate", "validation", "extend"} <= named
    for name in named - {
        "lists",
        "documents",
        "scenarios",
        "sweeps",
        "profiles",
        "errors",
        "fields",
    }:
        shown = call("show", name)
        assert shown.exit_code == 0 and shown.stdout


def test_the_wheel_has_every_document() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT).as_posix()
        source = name if name in included else path.parent.relative_to(ROOT).as_posix()
        assert included[source] == f"simtrain/_data/{source}"


def test_documents_are_listed_with_their_titles() -> None:
    lines = call("show", "documents").stdout.splitlines()
    titles = {line.partition(" ")[0]: line.partition(" ")[2].lstrip() for line in lines}
    assert titles["tutorial"] == "Tutorial: from nothing to a decision"
    assert "name,title" in call("show", "documents", "--format=csv").stdout


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_made_from_the_program(name: str) -> None:
    printed = call("show", name).stdout
    assert printed.startswith(f"# {REFERENCES[name][0]}\n")
    assert printed.count("\n") > 300 and "\x1b" not in printed


@pytest.mark.ci
@pytest.mark.slow
def test_references_need_no_optional_package() -> None:
    """A plain installation has neither torch nor the packages of other extras."""
    code = f"import sys\nfor name in {sorted(EXTRA_OF)}: sys.modules[name] = None\n"
    code += "from simtrain.commands.show import REFERENCES\n"
    code += "print(min(len(page()) for _, page in REFERENCES.values()))"
    outcome = spawn("-c", code)
    assert outcome.stderr == "" and int(outcome.stdout) > 10_000


@pytest.mark.parametrize("name", ["how_to/validate", "validate", "docs/how_to/validate.md"])
def test_a_document_is_printed_by_each_of_its_names(name: str) -> None:
    printed, file = call("show", name).stdout, ROOT / "docs/how_to/validate.md"
    assert printed.startswith("# Hold predictions against measured runs\n")
    assert "<!--" not in printed and printed.count("`") == file.read_text("utf-8").count("`")


def test_an_unknown_document_is_an_error() -> None:
    assert refused("show", "validat") == (
        'E101 nothing is named "validat"\n'
        "  fix: did you mean validate? simtrain show lists what there is\n"
    )
    assert "is for lists and profiles" in refused("show", "tutorial", "--format=csv")
