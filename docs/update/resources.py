"""Table of the resources to buy."""

from docs.update.request import Generator, Request, table
from simtrain.hardware.upgrades import RESOURCES


def resources(request: Request) -> str:
    """Return a table of all resources."""
    rows = [[resource.label, resource.text] for resource in RESOURCES.values()]
    return table(["resource", "entries of the profile"], rows)


GENERATORS: dict[str, Generator] = {"resources": resources}
