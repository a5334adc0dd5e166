"""A hook of mkdocs: writes the page of `simtrain explore` into the site when the site is built."""

from functools import cache
from pathlib import Path
from typing import Any

from simtrain.html.document import document_text
from simtrain.html.explore import explore_document


def on_post_build(config: Any) -> None:
    """Write the page beside the built pages."""
    Path(config.site_dir, "explore.html").write_text(_explore(), encoding="utf-8")


@cache
def _explore() -> str:
    """The page; `mkdocs serve` builds the site after every change, and simulates once."""
    return document_text(explore_document())
