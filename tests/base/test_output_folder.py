"""Output files of commands are complete, or unchanged after a failure."""

import errno
import os
import pathlib
import threading
from collections.abc import Callable

import pytest

from simtrain.base.output_folder import replacing
from simtrain.render.figures.iteration import plot_breakdown
from simtrain.render.figures.style import write_picture
from simtrain.render.html import document
from simtrain.render.html.elements import Html
from simtrain.render.traces import write
from tests.helpers.command_line import call
from tests.helpers.toys import run, small

CHROME = "simtrain.render.traces.write.write_chrome"
RESULT = run(small())


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def page(file: pathlib.Path) -> None:
    document.write_document(document.HtmlDocument("new", Html(), []), file)


def picture(file: pathlib.Path) -> None:
    write_picture(plot_breakdown(RESULT), file, "footer")


@pytest.mark.parametrize(
    ("name", "old", "inside", "write"),
    [
        ("t.json", None, CHROME, lambda file: write.write_trace(RESULT, file)),
        ("t.json.gz", b"old", CHROME, lambda file: write.write_trace(RESULT, file)),
        ("t.svg", b"old", "os.replace", picture),
        ("t.html", b"old", "os.replace", page),
    ],
)
def test_an_interrupted_file_stays_as_it_was(
    name: str,
    old: bytes | None,
    inside: str,
    write: Callable[[pathlib.Path], None],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / name
    if old:
        file.write_bytes(old)
    monkeypatch.setattr(inside, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(file)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == (
        {name: old} if old else {}
    )


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: pathlib.Path) -> None:
    file, link = tmp_path / "file.txt", tmp_path / "link.txt"
    link.symlink_to(file)
    for text in ("one", "two"):
        with replacing(link) as unfinished:
            unfinished.write_text(text, "utf-8")
        assert (file.read_text("utf-8"), link.is_symlink()) == (text, True)


@pytest.mark.parametrize("command", ["show template -o new.yaml", "show gpt2_1_5b -o new.yaml"])
def test_a_full_disk_leaves_no_file_behind(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(file: pathlib.Path, text: str, **settings: str) -> None:
        file.write_bytes(text.encode()[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(pathlib.Path, "write_text", write_half)
        outcome = call(*command.split())
    assert (outcome.exit_code, [*tmp_path.iterdir()]) == (2, [])
    assert outcome.stderr.startswith("new.yaml: E113 cannot write a file here: No space left")
    assert call(*command.split()).exit_code == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_directly(tmp_path: pathlib.Path) -> None:
    pipe, read = tmp_path / "pipe.json", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text("utf-8")))
    reader.start()
    with replacing(pipe) as target:
        target.write_text("all", "utf-8")
    reader.join()
    assert read == ["all"]


@pytest.mark.parametrize(
    "command", ["run X -o no/t.json", "run X -o no/t.svg", "run X -o no/t.html"]
)
def test_an_output_file_is_checked_before_the_simulation(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("simulation.simulate", "advice.simulate_fitting"):
        monkeypatch.setattr(f"simtrain.studies.{name}", interrupt)
    outcome = call(*command.replace("X", "gpt2_1_5b").split())
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("no/t.") and ": E113 " in outcome.stderr
