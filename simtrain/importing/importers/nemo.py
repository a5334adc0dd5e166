"""Configs and recipes of NeMo."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.base.file_kinds import FileKind, import_line
from simtrain.base.importer import Importer, ImportRequest

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft

PYTHON = FileKind(
    "a file with recipes of NeMo",
    re.compile(r"^(?:from|import) (?:nemo|nemo_run)\b", re.MULTILINE),
    import_line("nemo"),
)


class Nemo(Importer):
    """Convert a config or recipe of NeMo to a scenario.

    A comment on each field names the field that it comes from. --gpus replaces the number of nodes
    and devices. A Python file is read as text, not run; --config names one of several recipes in
    it. What a recipe takes from other files is in a printed one.

    Example: simtrain import nemo megatron_gpt_config.yaml --gpus 64 --set model.vocab_size=50304
    """

    name = "nemo"
    metavar = "CONFIG"
    argument = "YAML file of a training config or printed recipe, or Python file of a recipe."
    reads_configs = True
    place = 5
    kinds = (
        FileKind(
            "a config of NeMo",
            re.compile(r"^model[ \t]*:", re.MULTILINE),
            import_line(name),
            re.compile(r"^trainer[ \t]*:", re.MULTILINE),
        ),
        PYTHON,
    )

    def draft(self, request: ImportRequest) -> Draft:
        """Return the draft of a scenario."""
        from simtrain.importing.nemo.recipe import nemo_draft

        return nemo_draft(request)
