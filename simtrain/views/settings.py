"""What decided each setting of a scenario: `simtrain run --show settings`."""

from __future__ import annotations

from simtrain.base.strict_yaml import as_scalar
from simtrain.scenario.resolved import ResolvedSettings
from simtrain.views.kinds import TEXT, WHOLE_TEXT, Kind
from simtrain.views.view import Column, Facts, Table, View, remarks, rows_of

_SETTING = Kind(as_scalar, is_number=False)
_COLUMNS = (
    Column("field", "field", WHOLE_TEXT),
    Column("value", "value", _SETTING),
    Column("decided_by", "decided by", WHOLE_TEXT),
    Column("source", "source", TEXT, "the place in the file, or what the software stack cites"),
)


def settings_view(resolved: ResolvedSettings) -> View:
    """Every setting with what decided it, in the order of the sections of a scenario."""
    rows = rows_of(_COLUMNS, resolved.settings)
    facts = (("scenario", resolved.scenario or "unnamed"), ("software stack", resolved.software))
    table = Table("settings", "Settings", _COLUMNS, rows, optional=("source",))
    precedence = (
        "The first that has a value decides: --set, the scenario's file, its software stack, "
        "simtrain's default. A stack's default applies to the layouts that can have it."
    )
    return View([Facts(facts), table, remarks([precedence])])
