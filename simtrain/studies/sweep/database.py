"""DuckDB connections that read only what they are given: colleagues share sweeps and queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def allow_only(connection: duckdb.DuckDBPyConnection, files: Sequence[str] = ()) -> None:
    """Refuse access to all other files, to the network and to Python's variables."""
    connection.execute("set allowed_paths = ?", [list(files)])
    connection.execute("set python_enable_replacements = false")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
