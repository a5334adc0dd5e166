"""The table of resources to buy."""

from docs.update.request import Request, table
from simtrain.hardware.upgrades import RESOURCES


def resources(request: Request) -> str:
    """Return a table of all resources to buy."""
    rows = [[resource.label, resource.text] for resource in RESOURCES.values()]
    return table(["resource", "entries of the profile"], rows)
