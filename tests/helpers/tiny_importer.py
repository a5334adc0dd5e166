"""Jobs of a made-up trainer, TOML files of a few keys: an importer as another package writes it."""

import re
from typing import Any

from simtrain.base.importer import FileKind, Importer, ImportRequest


class Tiny(Importer):
    """Converts a job of the tiny trainer to a scenario."""

    name = "tiny"
    kinds = (FileKind("a tiny job", re.compile(r"^\[tiny\]$", re.MULTILINE)),)

    def draft(self, request: ImportRequest) -> Any:
        """Return the draft of a scenario."""
        from simtrain.guests.importing.draft import Draft
        from simtrain.guests.importing.settings import toml_settings
        from simtrain.guests.importing.table import MappedWord, WordTable

        mapped = {
            "tiny.layers": MappedWord("model.num_layers"),
            "tiny.width": MappedWord("model.hidden_size"),
            "tiny.heads": MappedWord("model.num_attention_heads"),
            "tiny.length": MappedWord("model.seq_length"),
            "tiny.norm": MappedWord("model.normalization", "rms", {"rms": "rms_norm"}),
            "tiny.batch": MappedWord("batch.global"),
            "tiny.micro": MappedWord("batch.micro", default=1),
            "tiny.tp": MappedWord("parallelism.tensor", default=1),
        }
        table = WordTable("key", "a tiny job", mapped, without_effect=frozenset({"tiny.lr"}))
        settings = toml_settings(request.text(self), request.file)
        draft = Draft(request, "a tiny job", "default of the tiny trainer", table, settings)
        draft.set_words()
        return draft
