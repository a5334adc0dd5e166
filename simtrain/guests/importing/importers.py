"""The importers; the modules that read sources are imported when one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from simtrain.base.importer import Importer, ImportRequest
from simtrain.base.registered import imported
from simtrain.base.values import replace
from simtrain.guests.importing.kinds import KINDS


class _Reader(Importer):
    """An importer whose `reader` is a function of a module of this package."""

    reader: ClassVar[str]

    def draft(self, request: ImportRequest) -> Any:
        return imported(f"simtrain.guests.importing.{self.reader}")(request)


class Megatron(_Reader):
    """Reads what starts Megatron-LM: a script, its arguments, or a log of a run."""

    name, place = "megatron", 1
    kinds = KINDS[name]
    reader = "megatron.fields.megatron_draft"
    reads_variables = True

    def captured(self, request: ImportRequest) -> ImportRequest:
        from simtrain.guests.importing.capture import capture

        return replace(request, source=capture(Path(request.source), request.env), capture=False)


class DeepSpeed(_Reader):
    """Reads DeepSpeed's JSON, and the config.json of the model beside it or of --model."""

    name, place = "deepspeed", 0
    reads_model = True
    kinds = KINDS[name]
    reader = "deepspeed.reader.deepspeed_draft"


class HuggingFace(_Reader):
    """Reads the config.json of a model, which has no batch, layout or machine."""

    name, place = "hf", 2
    is_model = True
    kinds = KINDS[name]
    reader = "hugging_face.model_config.hugging_face_draft"


class Torchtitan(_Reader):
    """Reads a job of torchtitan, a TOML file."""

    name, place = "torchtitan", 2
    kinds = KINDS[name]
    reader = "torchtitan.reader.torchtitan_draft"


class MegatronBridge(_Reader):
    """Reads a config that Megatron-Bridge prints, or a log with it."""

    name, place = "bridge", 2
    kinds = KINDS[name]
    reader = "bridge.reader.bridge_draft"
