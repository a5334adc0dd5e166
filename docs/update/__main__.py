"""Rewrite what documents quote of simtrain, or with `--check` say what is no longer true."""

import argparse
import sys

from docs.update.documents import ROOT, documents
from docs.update.notebook import run_notebook, stale_cells
from docs.update.pictures import draw
from docs.update.update import stale, updated


def main() -> None:
    """Update all documents, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m docs.update", description=__doc__)
    parser.add_argument("documents", nargs="*", help="such as README.md; all if none is given")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if text is stale")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures, nothing else")
    parser.add_argument("--notebook", action="store_true", help="run the notebook, nothing else")
    words = parser.parse_args()
    if words.pictures:
        return draw()
    if words.notebook:
        if words.check:
            sys.exit("\n".join(stale_cells()) or 0)
        return run_notebook()
    is_stale = False
    for document in words.documents or documents():
        if words.check:
            for line in stale(document):
                print(line)
                is_stale = True
        else:
            text = updated(document)
            if text != (ROOT / document).read_text(encoding="utf-8"):
                (ROOT / document).write_text(text, encoding="utf-8")
                print(f"updated {document}")
    sys.exit(is_stale)


if __name__ == "__main__":
    main()
