"""What every study answers: one line, the JSON and the rows of its command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from simtrain.base.plain_data import SCHEMA_VERSION, PlainData, attribute
from simtrain.base.registered import registered
from simtrain.base.resources import provenance
from simtrain.iteration.report.operators import Records, Rows


class Answer(PlainData, Rows):
    """An answer of a study: all formats of its command follow from it.

    A class has the `headline`. By default its lists of values are tables whose columns are the keys
    of JSON; `simtrain/views/answer.py` names the views that say more. The first table has the rows
    of `--format csv`.
    """

    __slots__ = ()
    json_made_on: ClassVar[str] = "cluster"
    """The attribute with the hardware profiles that JSON names."""
    if TYPE_CHECKING:

        @property
        def headline(self) -> str: ...

    @property
    def made_on(self) -> str | Sequence[str] | None:
        clusters: str | Sequence[str] | None = attribute(self, self.json_made_on)
        return clusters

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    def view(self, **choices: object) -> Any:
        """Return how it reads; `choices` are those of its view."""
        return registered("answer_view")(self, **choices)

    def records(self) -> Records:
        """Return the rows that its command prints with `--format csv`, as dicts."""
        table, *_ = self.view().tables.values()
        rows: Records = table.records()
        return rows

    def to_json(self) -> str:
        """Return what its command prints with `--format json`."""
        return json_text(self.to_dict(), self.made_on)


def json_text(data: dict[str, Any], made_on: str | Sequence[str] | None = None) -> str:
    """Return data as JSON with the version of their schema, and what they were made with."""
    made_with: dict[str, Any] = {}
    if isinstance(made_on, str):
        made_with = {"made_with": provenance(made_on)}
    elif made_on:
        made_with = {"made_with": [provenance(name) for name in dict.fromkeys(made_on)]}
    whole = {"schema_version": SCHEMA_VERSION} | data | made_with
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"
