"""Documents quote what simtrain computes today; `python -m docs.update` rewrites them."""

import re

import pytest

from docs.update.commands import lines_of_fact, printed
from docs.update.documents import ROOT
from docs.update.pictures import pictures, stale_pictures
from docs.update.update import Generator, updated

TEXT = """\
- A list:
  <!--=times a b=1-->

  | a |

  <!--/-->
<!--=output-->
```text
OK
```
<!--/-->
"""


def test_only_blocks_of_the_requested_generators_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generators: dict[str, Generator] = {
        "times": lambda request: f"| {request.words[1]} |\n\n| c |",
        "output": lambda request: f"line {request.line}",
    }
    monkeypatch.setattr("docs.update.update.GENERATORS", generators)
    once = TEXT.replace("| a |", "| b=1 |\n\n  | c |")
    assert updated("x.md", TEXT, ["times"]) == once
    assert updated("x.md", TEXT, generators) == once.replace("```text\nOK\n```", "line 7")
    assert updated("x.md", TEXT, []) == TEXT


def test_an_output_has_the_whole_text_of_a_fact_and_of_a_paragraph() -> None:
    lines = [
        "time   1 s;",
        "       or more",
        "price  2 USD",
        "",
        "A takes less",
        "than B.",
        "",
        "OK",
    ]
    assert lines_of_fact(lines, "time") == lines[:2]
    assert lines_of_fact(lines, "price") == lines[2:3]
    assert lines_of_fact(lines, "A takes") == lines[4:6]
    assert lines_of_fact(lines, "OK") == lines[7:]
    with pytest.raises(ValueError, match='begins with "cost"'):
        lines_of_fact(lines, "cost")


def test_a_name_without_a_generator_is_refused() -> None:
    with pytest.raises(ValueError, match=r'x\.md:1: no generator "tiem"; there are .* table5'):
        updated("x.md", "<!--=tiem a-->\n\n<!--/-->")


def test_footers_of_pictures_name_the_current_profiles() -> None:
    """If it fails: `python -m docs.update --pictures`."""
    assert len(pictures()) >= 3
    assert [*stale_pictures()] == []


@pytest.mark.slow
def test_the_picture_of_the_tutorial_has_the_results_of_its_sweep() -> None:
    picture = (ROOT / "docs/lengths.svg").read_text(encoding="utf-8")
    page = "docs/tutorial.md"
    printed(page, "simtrain sweep lengths.yaml -o lengths")
    query = "select printf('<!-- %.1f%% -->', mfu * 100) as mfu from results"
    cells = printed(page, f'simtrain sweep lengths --query "{query}" --format csv').splitlines()[1:]
    assert len(cells) == 6
    assert all(cell in picture for cell in cells)


def test_the_picture_of_a_timeline_has_the_time_that_the_iteration_takes() -> None:
    page = "docs/how_to/draw_a_run.md"
    path = ROOT / "docs/how_to/timeline.svg"
    _, (command,) = pictures()[path]
    time = printed(page, command.partition(" --stages")[0])
    (seconds,) = re.findall(r"iteration time +([\d.]+) s", time)
    picture = path.read_text(encoding="utf-8")
    assert f"<!-- One iteration of scenario table5_175b_full: {seconds} s -->" in picture
