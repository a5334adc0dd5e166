"""Jobs of torchtitan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.base.file_kinds import FileKind, import_line
from simtrain.base.importer import Importer, ImportRequest

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft

PYTHON = FileKind(
    "a file with configs of torchtitan",
    re.compile(r"^(?:from|import) torchtitan\b", re.MULTILINE),
    "simtrain import torchtitan {file} --config NAME --out scenario.yaml",
    re.compile(r"Config\("),
)


class Torchtitan(Importer):
    """Convert the job file of torchtitan to a scenario.

    A comment on each field names the key that it comes from. A job does not contain its number of
    GPUs: if its sharding degree is -1, add --gpus. simtrain contains the sizes of each flavor of
    a model. A Python file is read as text, not run; --config names one of several configs in it.

    Example: simtrain import torchtitan config_registry.py --config llama3_70b --gpus 128
    """

    name = "torchtitan"
    metavar = "JOB"
    argument = "TOML file of a torchtitan job, or Python file with functions that return configs."
    reads_configs = True
    place = 3
    kinds = (
        FileKind(
            "a job of torchtitan",
            re.compile(
                r"^\[(?:job|model|training|parallelism|optimizer|profiling|metrics)\][ \t]*$",
                re.MULTILINE,
            ),
            import_line(name),
        ),
        PYTHON,
    )

    def draft(self, request: ImportRequest) -> Draft:
        """Return the draft of a scenario."""
        from simtrain.importing.torchtitan.job_scenario import torchtitan_draft

        return torchtitan_draft(request)
