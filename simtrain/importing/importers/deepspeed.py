"""Configs of DeepSpeed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.base.file_kinds import FileKind
from simtrain.base.importer import Importer, ImportRequest

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft


class DeepSpeed(Importer):
    """Convert the config of DeepSpeed to a scenario.

    The model comes from --model: the config.json of a model on Hugging Face, or the script that
    starts Megatron-DeepSpeed. Without it, a script that names the JSON file, or a config.json, is
    looked for in the same folder. A script may write the JSON itself, in a here-document.

    Example: simtrain import deepspeed ds_config.json --model config.json --gpus 64
    """

    name = "deepspeed"
    metavar = "SOURCE"
    argument = "JSON file of DeepSpeed, or a script that passes one with --deepspeed_config FILE."
    reads_model = True
    reads_variables = True
    place = 0  # a script that starts DeepSpeed is a shell script too
    kinds = (
        FileKind(
            "a config of DeepSpeed",
            re.compile(
                r'"(?:train_(?:micro_)?batch_size(?:_per_gpu)?|zero_optimization|'
                r'zero_allow_untested_optimizer|gradient_accumulation_steps)"\s{0,8}:'
            ),
            "simtrain import deepspeed {file} --model config.json --gpus N --out scenario.yaml",
            re.compile(r"\A\s{0,99}\{"),
        ),
        FileKind(
            "a script that starts DeepSpeed",
            re.compile(
                r"^(?![ \t]{0,99}#)[^\n]{0,999}--deepspeed(?:[_-]config)?(?:[ =]+[\"'$./\w]|\s)",
                re.MULTILINE,
            ),
            "simtrain import deepspeed {file} --out scenario.yaml",
            re.compile(r"\A(?!\s{0,99}\{)(?![^\n]{0,80}-{5,} arguments)"),
        ),
    )

    def draft(self, request: ImportRequest) -> Draft:
        """Return the draft of a scenario."""
        from simtrain.importing.deepspeed.config_and_model import deepspeed_draft

        return deepspeed_draft(request)
