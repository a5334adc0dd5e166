"""The reference page of errors: each code with its meaning, reason, remedy and example."""

from simtrain.render.explanations import errors_document
from simtrain.scenario.explanations import explanations


def page() -> str:
    """Return the page in Markdown."""
    return errors_document(explanations().values())
