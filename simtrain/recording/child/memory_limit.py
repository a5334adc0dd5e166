"""Let a program that needs more memory than there is end in a Python error, not in a kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SHARE = 0.9
"""Of the memory that is available: the rest is for other processes."""


def limit_memory() -> None:
    """Limit what this process may allocate to the memory that is available now, where known."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    available = [*_available_bytes()]
    if available:
        with suppress(OSError, ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (int(_SHARE * min(available)), hard))


def _available_bytes() -> Iterator[int]:
    """Yield what the machine and the container have left."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        yield int(values["MemAvailable"].split()[0]) << 10
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, used = (
            int((group / f"memory.{name}").read_text(encoding="ascii"))
            for name in ("max", "current")
        )
        yield max(0, most - used)
    with suppress(OSError, ValueError, AttributeError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
