"""An iteration as a trace for Perfetto or Holistic Trace Analysis, or its schedule."""

CHROME, SCHEDULE = (".json.gz", ".json"), (".csv",)
"""Endings of files, in lower case. A name without an ending is a folder."""
SUFFIXES = (*CHROME, *SCHEDULE)
HELP = (
    ".json.gz or .json: a Chrome trace, as PyTorch's profiler writes it. .csv: the schedule in "
    "PyTorch's format. A folder: a Chrome trace per rank."
)
