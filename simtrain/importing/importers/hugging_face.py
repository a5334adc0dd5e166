"""Configs of models on Hugging Face."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.base.file_kinds import FileKind, import_line
from simtrain.base.importer import Importer, ImportRequest

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft


class HuggingFace(Importer):
    """Convert the config of a model on Hugging Face to a scenario.

    A comment on each field names the key that it comes from. A config does not contain the batch,
    the parallelism or the cluster: they have default values unless --set sets them.

    Example: simtrain import hf config.json --set parallelism.tensor=8 --set batch.global=256
    """

    name = "hf"
    metavar = "CONFIG"
    argument = "config.json of a model, or the folder with it."
    is_model = True
    place = 2
    kinds = (
        FileKind(
            "a config of a model on Hugging Face",
            re.compile(r'"(?:model_type|architectures)"\s{0,8}:'),
            import_line(name),
            re.compile(r"\A\s{0,99}\{"),
        ),
    )

    def draft(self, request: ImportRequest) -> Draft:
        """Return the draft of a scenario."""
        from simtrain.importing.hugging_face.model_config import hugging_face_draft

        return hugging_face_draft(request)
