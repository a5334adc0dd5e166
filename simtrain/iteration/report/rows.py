"""Tables of a result, as lists of rows."""

from __future__ import annotations

from typing import Any

from simtrain.base.extras import require

Records = list[dict[str, Any]]


class Rows:
    """Base class of tables."""

    __slots__ = ()

    def records(self) -> Records:
        """Return the rows as dicts, with a unit in each name."""
        raise NotImplementedError

    def frame(self) -> Any:
        """Return the rows as a pandas.DataFrame.

        Raises:
            InputError: pandas is not installed (E701).
        """
        require("a frame", "pandas", instead=", or use records() or Result.to_dict()")
        import pandas

        return pandas.DataFrame(self.records())
