"""Megatron-LM's arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.base.file_kinds import FileKind, import_line
from simtrain.base.importer import Importer, ImportRequest

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft


class Megatron(Importer):
    """Convert the arguments of Megatron-LM to a scenario.

    A comment on each field names the argument that it comes from. The first lines list the
    arguments that are not modelled, with their effect. A script is parsed, not run: --env says the
    variables that it does not define. Everything unknown or wrong is one answer.

    Example: simtrain import megatron train.sh --out scenario.yaml --env NNODES=4
    """

    name = "megatron"
    metavar = "SOURCE"
    argument = (
        "Shell script that starts Megatron-LM, file with its arguments, log of a run, test "
        "config (model_config.yaml), or the arguments themselves in quotes."
    )
    place = 1
    kinds = (
        FileKind(
            "a shell script",
            re.compile(
                r"\A#![^\n]*sh\b|^#SBATCH |^(?:torchrun|srun) |^(?:export [A-Za-z_]|[A-Z])\w*=",
                re.MULTILINE,
            ),
            import_line(name),
        ),
        FileKind(
            "a log of Megatron-LM",
            re.compile(r"^[^\n-]{0,80}-{5,} arguments -{5,}", re.MULTILINE),
            import_line(name),
        ),
        FileKind(
            "a test config of Megatron-LM",
            re.compile(r"^MODEL_ARGS[ \t]*:", re.MULTILINE),
            import_line(name),
            re.compile(r"\A(?!#!)[\s\S]*^(?:TEST_TYPE|ENV_VARS)[ \t]*:", re.MULTILINE),
        ),
    )
    reads_options = True
    reads_variables = True

    def draft(self, request: ImportRequest) -> Draft:
        """Return the draft of a scenario."""
        from simtrain.importing.megatron.scenario_draft import megatron_draft

        return megatron_draft(request)
