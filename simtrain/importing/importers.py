"""The importers and what each recognises; the modules that read sources are imported when one does.

`--help` lists the importers, and files of another kind are recognised by them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.base.importer import Importer, ImportRequest
from simtrain.base.input_file import FileKind, import_line

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft


_KINDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def _kinds(importer: str) -> tuple[FileKind, ...]:
    """Return the kinds of files of an importer."""
    return tuple(
        FileKind(
            row["noun"],
            re.compile(row["sign"], re.MULTILINE),
            row.get("command", import_line(importer)),
            re.compile(row.get("other", ""), re.MULTILINE),
        )
        for row in _KINDS[importer]
    )


class Megatron(Importer):
    """Convert the arguments of Megatron-LM to a scenario.

    A comment on each field names the argument that it comes from. The first lines list the
    arguments that are not modelled, with their effect. A script is parsed, not run: --env says the
    variables that it does not define. Everything unknown or wrong is one answer.

    Example: simtrain import megatron train.sh -o scenario.yaml --env NNODES=4
    """

    name = "megatron"
    metavar = "SOURCE"
    argument = (
        "Shell script that starts Megatron-LM, file with its arguments, log of a run, or the "
        "arguments themselves in quotes."
    )
    place = 1
    kinds = _kinds(name)
    reads_options = True
    reads_variables = True

    @contextmanager
    def opened(self, request: ImportRequest) -> Iterator[ImportRequest]:
        if not request.capture:
            yield request
            return
        from simtrain.importing.capture import announced_capture, command_of

        with announced_capture(command_of([request.file]), request.env) as captured:
            yield replace(request, source=captured.path)

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.importing.megatron.fields import megatron_draft

        return megatron_draft(request)


class DeepSpeed(Importer):
    """Convert the config of DeepSpeed to a scenario.

    The model is the config.json of a model on Hugging Face: that of --model, or the one in the
    same folder.

    Example: simtrain import deepspeed ds_config.json --model config.json --gpus 64
    """

    name = "deepspeed"
    metavar = "SOURCE"
    argument = "JSON file of DeepSpeed."
    reads_model = True
    place = 0
    kinds = _kinds(name)

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.importing.deepspeed.reader import deepspeed_draft

        return deepspeed_draft(request)


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
    kinds = _kinds(name)

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.importing.hugging_face.model_config import hugging_face_draft

        return hugging_face_draft(request)


class Torchtitan(Importer):
    """Convert the job file of torchtitan to a scenario.

    A comment on each field names the key that it comes from. A job does not contain its number of
    GPUs: if its sharding degree is -1, add --gpus. simtrain contains the sizes of each flavor of
    a model. Of a config in Python, write the keys of its sections in such a file.

    Example: simtrain import torchtitan job.toml --gpus 128
    """

    name = "torchtitan"
    metavar = "JOB"
    argument = "TOML file of a torchtitan job."
    place = 3
    kinds = _kinds(name)

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.importing.torchtitan.reader import torchtitan_draft

        return torchtitan_draft(request)


class MegatronBridge(Importer):
    """Convert a printed config of Megatron-Bridge to a scenario.

    A comment on each field names the field that it comes from. A config does not contain its
    number of GPUs: add --gpus. `cfg.print_yaml()` prints the config of a recipe.

    Example: simtrain import bridge config.yaml --gpus 1024 --set cluster=h100_sxm
    """

    name = "bridge"
    metavar = "CONFIG"
    argument = "YAML that Megatron-Bridge prints, or a log with it."
    place = 4
    kinds = _kinds(name)

    def draft(self, request: ImportRequest) -> Draft:
        from simtrain.importing.bridge.reader import bridge_draft

        return bridge_draft(request)
