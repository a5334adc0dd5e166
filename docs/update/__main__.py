"""Update the figures of simtrain in documents, or with `--check` list stale ones."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from docs.update.documents import ROOT, documents, text_of
from docs.update.explanations import rules_text
from docs.update.fit_errors import DOCUMENT, fits_in_background
from docs.update.pictures import draw, stale_pictures
from docs.update.update import stale, updated
from simtrain.render.explanations import RULES_FILE


def main() -> None:
    """Update or check all documents, or the named ones."""
    parser = argparse.ArgumentParser(prog="python -m docs.update", description=__doc__)
    parser.add_argument("documents", nargs="*", help="such as README.md; by default all")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if anything is stale"
    )
    parser.add_argument("--pictures", action="store_true", help="the pictures only")
    words = parser.parse_args()
    if words.pictures:
        if words.check:
            sys.exit("\n".join(stale_pictures()) or 0)
        return draw()
    names = words.documents or documents()
    with fits_in_background() if DOCUMENT in names else nullcontext():
        if not words.check:
            RULES_FILE.write_text(rules_text(), encoding="utf-8")
            return update(names)
        lines = [*stale(names)]
    lines += [] if words.documents else stale_pictures()
    sys.exit("\n".join(lines) or 0)


def update(names: Sequence[str]) -> None:
    """Rewrite the generated texts of documents; print the names of changed documents."""
    for document in names:
        old = text_of(document)
        text = updated(document, old)
        if text != old:
            (ROOT / document).write_text(text, encoding="utf-8")
            print(f"updated {document}")


if __name__ == "__main__":
    main()
