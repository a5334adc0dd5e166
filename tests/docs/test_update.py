"""Documents quote what simtrain computes today; `python -m docs.update` rewrites them."""

import re

import pytest

from docs.update.commands import lines_of_fact, printed
from docs.update.documents import ROOT
from docs.update.markers import Marked, marked, replaced
from docs.update.pictures import footer_differences, pictures, stale_pictures
from docs.update.update import stale

TEXT = """\
It takes 1.00 s, and 13.00 s
or 3.00 s more.

<!--quotes
1.00 s = time a b=1
3.00 s = time c
-->

- A list:
  <!--=times-->

  | a |

  <!--/-->
"""
LIST = "- 2 % are lost.\n\n  <!--quotes\n  2 % = part bubble d\n  -->\n"


def test_blocks_and_quoted_figures_are_found() -> None:
    block, first, second = marked(TEXT)
    assert (first.request, first.text, first.line) == ("time a b=1", "1.00 s", 5)
    assert (second.request, second.text, second.line) == ("time c", "3.00 s", 6)
    assert (block.request, block.text, block.line) == ("times", "| a |", 10)
    (of_item,) = marked(LIST)
    assert (of_item.request, of_item.text) == ("part bubble d", "2 %")


def test_only_generated_text_is_replaced() -> None:
    def value(one: Marked) -> str:
        return "| b |\n\n| c |" if one.request == "times" else one.text[::-1]

    assert replaced(TEXT, value) == (
        TEXT.replace("takes 1.00 s", "takes s 00.1")
        .replace("\n1.00 s =", "\ns 00.1 =")
        .replace("or 3.00 s", "or s 00.3")
        .replace("\n3.00 s =", "\ns 00.3 =")
        .replace("| a |", "| b |\n\n  | c |")
    )
    assert replaced(TEXT, lambda one: one.text) == TEXT
    assert replaced(LIST, lambda one: "3 %") == LIST.replace("2 %", "3 %")


def test_a_figure_may_continue_on_the_next_line() -> None:
    text = "It takes 1.00\ns.\n\n<!--quotes\n1.00 s = time a\n-->\n"
    assert replaced(text, lambda one: "2.00 s") == text.replace("1.00\ns", "2.00 s").replace(
        "1.00 s", "2.00 s"
    )


@pytest.mark.parametrize("figures", [("2.00 s",), ("1.00 s", "1.00 s"), ("3.00 s", "1.00 s")])
def test_a_figure_that_the_text_does_not_quote_in_this_place_is_refused(
    figures: tuple[str, ...],
) -> None:
    entries = "".join(f"{one} = time a\n" for one in figures)
    text = f"It takes 1.00 s, not 3.00 s or 12.00 s.\n\n<!--quotes\n{entries}-->\n"
    with pytest.raises(ValueError, match=r"line \d: the text above does not quote"):
        replaced(text, lambda one: one.text)


def test_an_output_may_follow_its_marker_without_an_empty_line() -> None:
    text = "<!--=output OK-->\n```text\nOK: 1 s\n```\n<!--/-->\n"
    assert replaced(text, lambda one: one.text.replace("1", "2")) == text.replace("1", "2")


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


def test_a_name_without_a_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.update.update.text_of", lambda name: "<!--=tiem a-->\n\n<!--/-->")
    with pytest.raises(ValueError, match=r'README\.md:1: no generator "tiem"; there are .* time'):
        list(stale(["README.md"]))


def test_footers_of_pictures_name_the_current_profiles() -> None:
    """If it fails: `python -m docs.update --pictures`."""
    assert len(pictures()) >= 4
    assert [*stale_pictures()] == []


def test_a_footer_with_another_profile_or_version_is_stale() -> None:
    picture = next(iter(pictures())).read_text(encoding="utf-8")
    (old,) = set(re.findall(r"SHA-256 (\w{8})", picture))
    assert [one.split()[:2] for one in footer_differences(picture.replace(old, "0" * 8))] == [
        ["has", "profile"]
    ]
    assert footer_differences(picture.replace("· simtrain ", "· simtrain 9."))[0].startswith(
        "has version 9."
    )
    assert footer_differences("<svg/>") == ["has no footer with profile and version"]


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
