"""Jobs of torchtitan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from simtrain.base.file_kinds import FileKind, import_line
from simtrain.importing.importers.importer import Importer

if TYPE_CHECKING:
    from simtrain.importing.draft import Draft


class Torchtitan(Importer):
    """The TOML file of a job."""

    name = "torchtitan"
    metavar = "JOB"
    argument = "TOML file of a torchtitan job."
    text = """Convert the job file of torchtitan to a scenario.

    A comment on each field names the key that it comes from. A job does not contain its number of
    GPUs: if its sharding degree is -1, add --set parallelism.data. The sizes of a model's flavor
    come from the scenario of this model that comes with simtrain.

    Example: simtrain import torchtitan job.toml --set parallelism.data=16 --set cluster=h100_sxm
    """
    kinds = (
        FileKind(
            "a job of torchtitan",
            re.compile(
                r"^\[(?:job|model|training|parallelism|optimizer|profiling|metrics)\][ \t]*$",
                re.MULTILINE,
            ),
            import_line(name),
        ),
    )

    def draft(
        self,
        source: str,
        overrides: Iterable[str] = (),
        *,
        ignore_unknown: bool = False,
        gpus: int | None = None,
    ) -> Draft:
        """Return the draft of a scenario from a source."""
        from simtrain.importing.torchtitan.mapping import torchtitan_draft

        return torchtitan_draft(source, overrides, ignore_unknown=ignore_unknown, gpus=gpus)
