"""Optional packages: the extra that installs each, and the error for a missing one."""

from __future__ import annotations

import importlib.util
import sys

from simtrain.errors import InputError

EXTRA_OF = {
    "numba": "fast",
    "pyarrow": "sweep",
    "duckdb": "sweep",
    "matplotlib": "plot",
    "optuna": "search",
    "ray": "ray",
    "scipy": "calibrate",
    "torch": "measure",
}


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    if package in sys.modules:
        return sys.modules[package] is not None  # None, to Python, is a package not to be imported
    return importlib.util.find_spec(package) is not None


def require(what: str, *packages: str, instead: str = "") -> None:
    """Refuse to go on without optional packages. Called before anything imports them.

    `what` is the subject of "... needs matplotlib"; `instead` is another way out, appended to the
    command that installs the packages.

    Raises:
        InputError: E701, a package is missing.
    """
    if missing := [package for package in packages if not is_installed(package)]:
        extras = ",".join(sorted({EXTRA_OF[name] for name in missing if name in EXTRA_OF}))
        others = [name for name in missing if name not in EXTRA_OF]
        wanted = " ".join([f"'simtrain[{extras}]'"] * bool(extras) + others)
        message = f"{what} needs {' and '.join(missing)}"
        raise InputError.of("E701", message, fix=f"pip install {wanted}{instead}")
