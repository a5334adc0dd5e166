"""The importers; the modules that read sources are imported when one does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.base.importer import Importer, ImportRequest
from simtrain.base.values import replace
from simtrain.guests.importing.kinds import KINDS

if TYPE_CHECKING:
    from simtrain.guests.importing.draft import Draft


class Megatron(Importer):
    """Reads what starts Megatron-LM: a script, its arguments, or a log of a run."""

    name, place = "megatron", 1
    kinds = KINDS[name]
    reads_variables = True

    def captured(self, request: ImportRequest) -> ImportRequest:
        from simtrain.guests.importing.capture import capture

        return replace(request, source=capture(Path(request.source), request.env), capture=False)

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.guests.importing.megatron.fields import megatron_draft

        return megatron_draft(request)


class DeepSpeed(Importer):
    """Reads DeepSpeed's JSON, and the config.json of the model beside it or of --model."""

    name, place = "deepspeed", 0
    reads_model = True
    kinds = KINDS[name]

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.guests.importing.deepspeed.reader import deepspeed_draft

        return deepspeed_draft(request)


class HuggingFace(Importer):
    """Reads the config.json of a model, which has no batch, layout or machine."""

    name, place = "hf", 2
    is_model = True
    kinds = KINDS[name]

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.guests.importing.hugging_face.model_config import hugging_face_draft

        return hugging_face_draft(request)


class Torchtitan(Importer):
    """Reads a job of torchtitan, a TOML file."""

    name, place = "torchtitan", 2
    kinds = KINDS[name]

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.guests.importing.torchtitan.reader import torchtitan_draft

        return torchtitan_draft(request)


class MegatronBridge(Importer):
    """Reads a config that Megatron-Bridge prints, or a log with it."""

    name, place = "bridge", 2
    kinds = KINDS[name]

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.guests.importing.bridge.reader import bridge_draft

        return bridge_draft(request)
