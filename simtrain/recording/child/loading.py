"""Load the function of a user's script."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simtrain.recording.child.problems import WrongProgram


def function_of(request: dict[str, Any]) -> Callable[..., Any]:
    """Import a script as Python runs it, with the modules beside it; return its function.

    Raises:
        WrongProgram: it has no such function.
    """
    script, name = Path(request["script"]), request["function"]
    if request["module"]:
        known: Callable[..., Any] = getattr(importlib.import_module(request["module"]), name)
        return known
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script)]
    spec = importlib.util.spec_from_file_location(script.stem, script)
    if spec is None or spec.loader is None:
        raise WrongProgram("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == script.stem
        ]
        names = f"; its functions are {', '.join(functions[:8])}" if functions else ""
        raise WrongProgram(f"it has no function {name}{names}")
    return function
