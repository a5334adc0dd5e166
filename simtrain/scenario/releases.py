"""Names that other rooms still import from here."""

from simtrain.scenario.software import SEPARATOR, latest_until, split_reference

__all__ = ["SEPARATOR", "latest_until", "split_reference"]
