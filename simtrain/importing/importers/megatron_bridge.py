"""Configs of Megatron-Bridge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.base.file_kinds import FileKind, import_line
from simtrain.base.importer import Importer, ImportRequest

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft

PYTHON = FileKind(
    "a file with recipes of Megatron-Bridge",
    re.compile(r"^(?:from|import) megatron\.bridge\b", re.MULTILINE),
    "simtrain import bridge {file} --config NAME --out scenario.yaml",
)


class MegatronBridge(Importer):
    """Convert a config of Megatron-Bridge to a scenario.

    A comment on each field names the field that it comes from. A config does not contain its
    number of GPUs: add --gpus. A Python file is read as text, not run; --config names one of
    several recipes in it. What a recipe takes from other files is in a printed config.

    Example: simtrain import bridge config.yaml --gpus 1024 --set cluster=h100_sxm
    """

    name = "bridge"
    metavar = "CONFIG"
    argument = "YAML that Megatron-Bridge prints, a log with it, or Python file of recipes."
    reads_configs = True
    place = 4
    kinds = (
        FileKind(
            "a config of Megatron-Bridge",
            re.compile(r"^_target_: megatron\.bridge\S*\.ConfigContainer[ \t]*$", re.MULTILINE),
            import_line(name),
        ),
        PYTHON,
    )

    def draft(self, request: ImportRequest) -> Draft:
        """Return the draft of a scenario."""
        from simtrain.importing.nemo.bridge import bridge_draft

        return bridge_draft(request)
