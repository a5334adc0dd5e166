"""Differences between operating systems: processors, memory, limits on workers."""

from __future__ import annotations

import importlib
import os
import struct
import sys
from typing import Any

MOST_WORKERS = 61 if sys.platform == "win32" else None
"""Windows waits for at most 64 handles at a time; a process pool needs three of them."""
_MEMORY_STATUS_BYTES = 64


def num_processors() -> int:
    """Number of processors that this process may use."""
    # Only Linux has sched_getaffinity.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def physical_memory_bytes() -> int:
    """The memory of this machine.

    Raises:
        OSError: Windows does not tell.
    """
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    ctypes: Any = importlib.import_module("ctypes")
    # Windows' MEMORYSTATUSEX: its own length, the load in percent, the physical bytes, and others.
    length = struct.pack("<I", _MEMORY_STATUS_BYTES)
    status = ctypes.create_string_buffer(length, _MEMORY_STATUS_BYTES)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(status):
        raise OSError("GlobalMemoryStatusEx failed")
    return int(struct.unpack_from("<Q", status.raw, 8)[0])
