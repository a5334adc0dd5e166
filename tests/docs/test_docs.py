"""Commands and snippets of README.md and docs/ work as written."""

import functools
import pathlib
import re
import shlex
import subprocess
import textwrap
import tomllib
from typing import get_args

import pytest
from pytest import MonkeyPatch

from docs.update.documents import blocks, blocks_in, documents, text_of, write_files
from docs.update.update import requests
from simtrain.base.resources import list_profiles, list_scenarios, list_stacks, list_sweeps
from simtrain.commands.show import REFERENCES
from simtrain.guests.paper import explore, targets
from simtrain.guests.paper.commands import Target
from simtrain.guests.paper.entries import PaperEntry, TimeComparison
from simtrain.render.html.document import HtmlDocument
from simtrain.render.html.elements import Html
from tests.helpers import command_line
from tests.helpers.command_line import ROOT, call, spawn

# Reference pages contain commands with errors.
DOCUMENTS = [
    *(one for one in documents() if not one.startswith("docs/reference/")),
    "benchmarks/README.md",
]
# On the site these pages exist too; mkdocs checks their anchors.
GENERATED = [f"docs/{name}.md" for name in REFERENCES]
ALL_TESTS = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
PYTHON_PAGE = "docs/how_to/use_from_python.md"
SWEEPS = ["docs/tutorial.md", "docs/how_to/run_a_sweep.md"]


def commands(start: str) -> list[str]:
    """Return the lines of all documents' blocks that start with a prefix."""
    lines = [
        line for name in DOCUMENTS for block in blocks(name) for line in block.text.split("\n")
    ]
    found = sorted({line for line in lines if line.startswith(start)})
    assert found, f'no document shows how to use "{start}"'
    return found


def marked(name: str) -> str:
    """Return the command in the README's block after `<!-- NAME -->`."""
    found = re.search(rf"<!-- {name} -->\n```\n(.*)\n```\n", text_of("README.md"))
    assert found, f"README.md has no {name}"
    return found[1]


@pytest.fixture
def newcomer(tmp_path: pathlib.Path, monkeypatch: MonkeyPatch) -> pathlib.Path:
    """Use a working directory with the files that documents tell the reader to write."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def anchors(document: pathlib.Path) -> set[str]:
    """Return the anchors that GitHub and mkdocs give the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {one.strip().replace(" ", "-") for one in words}


def test_links_of_documents_have_targets() -> None:
    for document in [*documents(), "benchmarks/README.md", "CHANGELOG.md"]:
        text = text_of(document)
        assert text.startswith("# ") and text.count("```") % 2 == 0, document
        for link in re.findall(r"\]\(([^)]+)\)", re.sub("`[^`\n]*`", "", text)):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            page = (ROOT / document).parent / path if path else ROOT / document
            if page.resolve().relative_to(ROOT).as_posix() in GENERATED:
                continue
            assert page.exists(), (document, link)
            assert not anchor or anchor in anchors(page), (document, link)


def test_documents_name_files_and_tests_that_exist() -> None:
    """Paths start in the repository or in simtrain/. Words in capitals stand for any name."""
    for document in [*documents(), "benchmarks/README.md"]:
        text = text_of(document)
        for path in re.findall(r"`([a-z_]+/[a-z0-9_/.]+\.(?:py|yaml|toml))`", text):
            places = [base / path for base in (ROOT, ROOT / "simtrain")]
            if any((ROOT / base / path.split("/")[0]).is_dir() for base in ("", "simtrain")):
                assert any(place.is_file() for place in places), (document, path)
        for test in re.findall(r"`(test_\w+)`", text):
            assert f"def {test}(" in ALL_TESTS, (document, test)


def test_the_index_leads_to_every_page() -> None:
    index, navigation = text_of("docs/index.md"), text_of("mkdocs.yml")
    for document in [*documents(), *GENERATED]:
        page = document.removeprefix("docs/")
        assert page in ("README.md", "index.md") or f"]({page})" in index, page
        assert page == "README.md" or page in navigation, page


def test_every_command_is_shown() -> None:
    shown = {command.split()[1] for command in commands("simtrain ")}
    assert shown == {name.split()[0] for name in command_line.commands()}
    targets = {command.split()[2] for command in commands("simtrain reproduce")}
    assert targets == set(get_args(Target))


SHORT = ("table2", "table4", "fig1", "fig7", "fig8", "fig9")
_ONCE = {target: functools.cache(getattr(targets, target)) for target in SHORT}


_IS_SWEEP = re.compile(r"simtrain sweep .* -o ")


def blocks_of_sweeps(*documents: str) -> list[list[str]]:
    """Return the lines of blocks that run a sweep, and then query it."""
    lines = [block.text.splitlines() for name in documents for block in blocks(name)]
    return [block for block in lines if any(_IS_SWEEP.match(line) for line in block)]


def commands_of_outputs() -> set[str]:
    """Return the commands whose output a document shows; tests/docs/test_update.py runs them."""
    above = [
        request.before
        for name in documents()
        for _, request in requests(name, text_of(name))
        if request.name == "output"
    ]
    return {line for text in above for line in blocks_in(text)[-1].text.splitlines()}


RECORDED = "docs/how_to/record_a_program.md"
"""tests/guests/recording runs its commands: they need torch, and files of each other."""
ELSEWHERE = commands_of_outputs().union(*blocks_of_sweeps(*DOCUMENTS))
ELSEWHERE |= {line for block in blocks(RECORDED) for line in block.text.splitlines()}
CALIBRATION = commands("simtrain calibrate ") + commands("simtrain validate my_")
"""What needs measurements of a machine."""
CI_ONLY = ("simtrain reproduce all ", "simtrain search ", "simtrain validate ")
"""How the commands begin that take longest."""
ALONE = [
    pytest.param(command, marks=pytest.mark.ci if command.startswith(CI_ONLY) else [])
    for command in commands("simtrain ")
    if command not in {*ELSEWHERE, *CALIBRATION}
]


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("block", blocks_of_sweeps(*SWEEPS), ids="; ".join)
@pytest.mark.usefixtures("newcomer")
def test_sweeps_run_as_written(block: list[str]) -> None:
    for command in block:
        outcome = call(*shlex.split(command)[1:])
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.stdout


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("command", ALONE)
@pytest.mark.usefixtures("newcomer")
def test_commands_run_as_written(command: str, monkeypatch: MonkeyPatch) -> None:
    """tests/guests/paper runs the long simulations; all others run once."""
    for target, once in _ONCE.items():
        monkeypatch.setattr(targets, target, lambda progress, once=once: once())
    quick = TimeComparison("a quick one", [PaperEntry(("22B", "full"), 1.42, 1.42)], 0.01, 0.01)
    for target in ("table5", "dp530b", "appendix_c"):
        monkeypatch.setattr(targets, target, lambda progress: quick)
    small = HtmlDocument("stands for a long one", Html(), ())
    monkeypatch.setattr(explore, "explore_document", lambda on_progress: small)
    outcome = call(*shlex.split(command)[1:])
    assert outcome.exit_code == 0, outcome.stderr
    # A command says what it imported, and on which GPU it simulates it.
    assert not outcome.stderr or outcome.stderr.startswith(
        ("Imported ", "Simulated on ", "Running: ")
    )
    assert outcome.stdout


@pytest.mark.parametrize("command", commands("simtrain calibrate ") + commands("torchrun "))
def test_calibrate_parses_its_commands(command: str) -> None:
    """tests/calibrate tests what the commands do."""
    words = shlex.split(command)
    name, *options = words[words.index("calibrate") + 1 :]
    assert command_line.parsed(f"calibrate {name}", *options).values()


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("command", commands("simtrain calibrate fit calibrate/"))
def test_the_fit_runs_as_written(command: str, newcomer: pathlib.Path) -> None:
    """It reads the clone's figures and writes to the given file."""
    (newcomer / "calibrate").symlink_to(ROOT / "calibrate")
    words = ["-m", *shlex.split(command)[1:]]
    outcome = spawn(*words, folder=newcomer, PYTHONHASHSEED="7")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    written = (newcomer / "my_a100.yaml").read_text(encoding="utf-8")
    assert written == text_of("hw_profiles/a100_sxm4_80gb.yaml")


def python_of(page: str) -> list[str]:
    """Return the blocks of a page that are Python of simtrain; those of other programs are "py"."""
    return [textwrap.dedent(one.text) for one in blocks(page) if one.language == "python"]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.ci if page == PYTHON_PAGE else ())
        for page in documents()
        if python_of(page)
    ],
)
@pytest.mark.usefixtures("newcomer")
def test_python_of_every_page_runs(page: str) -> None:
    names: dict[str, object] = {"__name__": "page"}
    for text in python_of(page):
        exec(compile(text, page, "exec"), names)


@pytest.mark.parametrize("page", DOCUMENTS)
def test_shell_blocks_parse(page: str) -> None:
    for block in blocks(page):
        if block.language in ("", "bash"):
            subprocess.run(["bash", "-n", "-c", block.text], check=True)


# ------------------------------------------------------------------------- the project around it


def test_the_marked_commands_install_with_the_constraints() -> None:
    for name, last in (
        ("main command", ".venv/bin/simtrain reproduce table5"),
        ("test command", ".venv/bin/python -m pytest"),
    ):
        create, install, work = marked(name).split(" && ")
        assert create == "python3 -m venv .venv"
        assert install.startswith(".venv/bin/pip install --quiet -c constraints.txt ")
        assert work == last


def test_the_wheel_carries_scenarios_and_profiles() -> None:
    build = tomllib.loads(text_of("pyproject.toml"))["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert {name: place for name, place in included.items() if not name.startswith("docs/")} == {
        "scenarios": "simtrain/_data/scenarios",
        "hw_profiles": "simtrain/_data/hw_profiles",
        "software_stacks": "simtrain/_data/software_stacks",
        "sweeps": "simtrain/_data/sweeps",
    }
    for folder, names in (
        ("scenarios", list_scenarios()),
        ("hw_profiles", list_profiles()),
        ("software_stacks", list_stacks()),
        ("sweeps", list_sweeps()),
    ):
        found = (ROOT / folder).glob("*.*")
        assert names == sorted(path.stem for path in found)
