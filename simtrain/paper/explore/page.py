"""Build the page of `simtrain reproduce explore`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simtrain.paper.entries import Progress
from simtrain.paper.explore.data import explore_data
from simtrain.paper.explore.sections import SECTIONS
from simtrain.paper.larger_batch import MICROBATCHES
from simtrain.paper.models import MODELS
from simtrain.paper.recompute_tax import LENGTHS
from simtrain.render.html.document import HtmlDocument
from simtrain.render.html.elements import Html, element

_ASSETS = Path(__file__).parent / "assets"
TITLE = "Explore: reducing activation recomputation"


def explore_document(
    models: Sequence[str] = MODELS,
    lengths: Sequence[int] = LENGTHS,
    microbatches: Sequence[int] = MICROBATCHES,
    on_progress: Progress | None = None,
) -> HtmlDocument:
    """Build the page.

    Args:
        models: models of Table 3 whose times are simulated.
        lengths: sequence lengths for which a layer is simulated.
        microbatches: sizes of microbatches for which iterations are simulated.
        on_progress: called after each simulated model.
    """
    data = explore_data(models, lengths, microbatches, on_progress)
    sections = [section(data) for section in SECTIONS]
    scripts = ("state", "draw", "layer", "crossing", "ladder", "tax", "freed", "start")
    return HtmlDocument(
        TITLE,
        _LEAD,
        sections,
        data,
        _foot(data),
        styles=(_ASSETS / "explore.css",),
        scripts=tuple(_ASSETS / f"{name}.js" for name in scripts),
    )


_LEAD = Html(
    """<p>Training keeps, for every layer, the tensors that its backward pass will read: the
activations. In the models below, activations take more memory than weights and optimizer states.
The usual remedy is recompute: drop them, and run the forward pass again. Korthikanti et al.,
<a href="https://arxiv.org/abs/2205.05198"><cite>Reducing Activation Recomputation in Large
Transformer Models</cite></a> (2022), show that most of this recompute is unnecessary. This page
presents their argument in five figures. Move the sliders to see how memory and time change.</p>"""
)


def _foot(data: dict[str, Any]) -> Html:
    made = data["made_with"]
    return element(
        "p",
        f"simtrain reproduce explore, simtrain {made['simtrain']}, "
        f"hardware profile {made['profile']} (SHA-256 {made['profile_sha256'][:8]}). "
        "The page loads nothing from the network.",
    )
