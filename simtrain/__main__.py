"""Entry point of `simtrain` and of `python -m simtrain`."""

from __future__ import annotations

import os
import signal
import sys

from simtrain.base.version import VERSION

_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly, also while commands are imported."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"simtrain {VERSION}\n")
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))
    from simtrain.commands.cli import main as run_commands

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_commands()


if __name__ == "__main__":
    main()
