"""Optional packages: the extra that installs each, and the error if one is missing."""

from __future__ import annotations

import importlib.util
import sys

from simtrain.errors import InputError

EXTRA_OF = {
    "numba": "fast",
    "pyarrow": "sweep",
    "duckdb": "sweep",
    "matplotlib": "plot",
    "scipy": "calibrate",
    "torch": "measure",
}


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    if package in sys.modules:
        return sys.modules[package] is not None  # None in sys.modules blocks an import
    return importlib.util.find_spec(package) is not None


def require(what: str, *packages: str, instead: str = "") -> None:
    """Raise an error if optional packages are missing. Call it before importing them.

    Args:
        what: the subject of the message "... needs matplotlib".
        packages: names to import.
        instead: an alternative, appended to the pip command.

    Raises:
        InputError: a package is missing (E701).
    """
    if missing := [package for package in packages if not is_installed(package)]:
        extras = ",".join(sorted({EXTRA_OF[name] for name in missing if name in EXTRA_OF}))
        others = [name for name in missing if name not in EXTRA_OF]
        wanted = " ".join([f"'simtrain[{extras}]'"] * bool(extras) + others)
        message = f"{what} needs {' and '.join(missing)}"
        raise InputError.of("E701", message, fix=f"pip install {wanted}{instead}")
