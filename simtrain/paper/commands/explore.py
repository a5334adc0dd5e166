"""`simtrain explore`."""

from __future__ import annotations

from simtrain.commands.app import in_panel
from simtrain.commands.options import HtmlFileOption
from simtrain.commands.printing import emit


@in_panel("Look up")
def explore(out: HtmlFileOption) -> None:
    """Write the paper's figures with sliders as one HTML file that needs no network.

    It shows the activations of a layer tensor by tensor, when attention dominates, the memory and
    time of each recompute strategy, and uses of the freed memory. Bytes follow the sliders. Times
    are simulated when the page is written, which takes half a minute.

    Example: simtrain explore --out explore.html
    """
    from simtrain.base.output_folder import check_writable
    from simtrain.commands.progress import progress_bar
    from simtrain.paper import explore as page
    from simtrain.render.html.document import check_html_file, write_document

    check_html_file(out)
    check_writable(out, "the page")
    with progress_bar() as report:
        document = page.explore_document(on_progress=report)
    write_document(document, out)
    emit(f"{out}\n")
