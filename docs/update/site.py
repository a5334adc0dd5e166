"""Hooks of mkdocs: the reference pages that simtrain makes of itself, and the page of explore."""

from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from simtrain.commands.show import REFERENCES
from simtrain.guests.paper.explore import explore_document
from simtrain.render.html.document import document_text


def on_files(files: Any, config: Any) -> Any:
    """Add the reference pages; no file of the checkout has them."""
    for name in REFERENCES:
        files.append(File.generated(config, f"{name}.md", content=_reference(name)))
    return files


def on_post_build(config: Any) -> None:
    """Write the page of `simtrain reproduce explore` to the folder of the site."""
    Path(config.site_dir, "explore.html").write_text(_explore(), encoding="utf-8")


# Cached, because `mkdocs serve` builds the site after every change.
@cache
def _reference(name: str) -> str:
    return REFERENCES[name][1]()


@cache
def _explore() -> str:
    return document_text(explore_document())
