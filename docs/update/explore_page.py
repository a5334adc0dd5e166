"""Hook of mkdocs that writes the page of `simtrain explore` to the site."""

from functools import cache
from pathlib import Path
from typing import Any

from simtrain.render.html.document import document_text
from simtrain.render.html.explore import explore_document


def on_post_build(config: Any) -> None:
    """Write the page to the folder of the site."""
    Path(config.site_dir, "explore.html").write_text(_explore(), encoding="utf-8")


@cache
def _explore() -> str:
    """Return the page. Cached, because `mkdocs serve` builds the site after every change."""
    return document_text(explore_document())
