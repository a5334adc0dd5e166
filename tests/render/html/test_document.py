"""Files of documents: text is escaped once, and the file loads nothing."""

import pathlib
import re

import pytest

from simtrain.errors import InputError
from simtrain.render.html.document import (
    ASSETS,
    HtmlDocument,
    HtmlSection,
    document_text,
    write_document,
)
from simtrain.render.html.elements import Html, element, joined, number
from simtrain.render.html.view import view_html
from simtrain.views.kinds import BAR, SIGNED_SHARE, TEXT
from simtrain.views.view import Column, Row, Table, View
from tests.render.html.pages import parsed

EVIL = "</script><img src=x onerror=alert(1)>&\"'"


def document(text: str = "", **data: object) -> HtmlDocument:
    section = HtmlSection("one", text, element("p", text, title=text))
    return HtmlDocument(text, joined(text), [section], data)


def test_text_is_escaped_exactly_once() -> None:
    page = parsed(document_text(document(EVIL, name=EVIL)))
    assert page.data == {"name": EVIL}
    assert [about["title"] for about, _ in page.of("p")] == [EVIL]
    assert {text for _, text in page.of("title", "h1", "h2", "p")} == {EVIL}
    assert not page.of("img")


def test_attributes_and_tables_are_valid_html() -> None:
    assert element("p", "<", Html("<b>"), data_at="/x", class_="a", hidden=True, open=False) == (
        '<p data-at="/x" class="a" hidden>&lt;<b></p>'
    )
    assert element("br") == "<br>"


def test_a_number_has_its_exact_value_and_text_has_none() -> None:
    (only,) = parsed(number(0.1 + 0.2, "300 ms")).of("data")
    assert only == ({"value": "0.30000000000000004"}, "300 ms")
    assert number("2 < 3", "2 < 3") == "2 &lt; 3" and number(True, "true") == "true"


def test_bars_of_a_table_are_in_scale_and_long_words_can_be_broken() -> None:
    """A share fills at most its cell; a change fills at most one half of it, to either side."""
    shares = (0.25, 1.0, 1.5, None)
    changes = (-0.25, 0.25, -0.75, 0.0)
    names = ("a_" * 10, "a_" * 10 + "a", "short", "")
    columns = Column("", "", TEXT), Column("", "", BAR), Column("", "", SIGNED_SHARE)
    rows = [Row(cells) for cells in zip(names, shares, changes, strict=True)]
    page = parsed(view_html(View([Table("any", "", columns, rows)])))
    bars = [about for about, _ in page.of("div") if about.get("class") == "share"]
    assert [about["style"] for about in bars] == [f"width:{n}.000%" for n in (25, 100, 100)]
    bars = [(about["class"], about["style"]) for about, _ in page.of("span") if "style" in about]
    assert bars == [
        ("less", "width:25.000%"), ("more", "width:25.000%"), ("less", "width:50.000%"),
    ]  # fmt: skip
    assert len(page.of("wbr")) == 10
    assert [text for _, text in page.of("th")] == [*names]
    assert not page.of("thead")


def test_every_style_and_script_is_part_of_the_file_and_loads_nothing() -> None:
    names = sorted(path.relative_to(ASSETS).as_posix() for path in ASSETS.rglob("*.*"))
    assert names == ["base.css", "base.js", "timeline.js"]
    text = document_text(HtmlDocument("Title", Html(), [HtmlSection("one", "One", Html())]))
    page = parsed(text)
    for name in names:
        assert text.count((ASSETS / name).read_text("utf-8")) == 1
    for _, about, _ in page.elements:
        assert not {"src", "srcset", "action"} & about.keys()
        assert about.get("href", "#").startswith("#")
    for found in re.findall(r"https?:[^\s\"')]*|@import|url\(|fetch\(|XMLHttpRequest", text):
        assert found == "http://www.w3.org/2000/svg", found  # the name of a namespace
    (policy,) = (about for about, _ in page.of("meta") if "http-equiv" in about)
    assert (policy["content"] or "").startswith("default-src 'none'; ")


def test_a_section_has_an_anchor_a_label_and_a_link() -> None:
    page = parsed(document_text(document("Answer")))
    ids = [about["id"] for _, about, _ in page.elements if "id" in about]
    assert len(ids) == len({*ids})
    for _, about, _ in page.elements:
        assert about.get("aria-labelledby", ids[0]) in ids
        assert about.get("href", "#main").removeprefix("#") in ids
    assert [about["lang"] for about, _ in page.of("html")] == ["en"]


def test_a_file_that_cannot_be_written_is_refused(tmp_path: pathlib.Path) -> None:
    for name, code in (("report.pdf", "E117"), ("report", "E117"), ("nowhere/report.html", "E113")):
        with pytest.raises(InputError, match=f"{code} "):
            write_document(document(), tmp_path / name)
    (tmp_path / "old.HTML").write_text("old", "utf-8")
    write_document(document("new"), tmp_path / "old.HTML")
    assert (tmp_path / "old.HTML").read_bytes() == document_text(document("new")).encode()
