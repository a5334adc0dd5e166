"""Names that other rooms still import from here."""

from simtrain.scenario.template import scenario_schema

__all__ = ["scenario_schema"]
