"""Keys of a torchtitan job: mapped, without effect, or not modelled (keys.toml)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simtrain.importing.table import WordsFile
from simtrain.scenario.dispatchers import DEFAULT, DISPATCHERS
from simtrain.schedules import NAMED, default_name

SCHEDULES = {
    torch_name: name for name, family in NAMED.items() for torch_name in family.torch_names
}
"""Our names of PyTorch's pipeline schedules, by lower-case name."""

FILE_SCHEDULES = {
    "pipelineschedulesingle": default_name(1),
    "pipelineschedulemulti": default_name(2),
    "_pipelinescheduleruntime": default_name(2),
}
"""For other schedules that a job with a schedule's file may name, one with as many chunks."""

_COMM_BACKENDS = {
    dispatcher.torchtitan: name for name, dispatcher in DISPATCHERS.items() if dispatcher.torchtitan
}
_BACKEND = "parallelism.expert_parallel_comm_backend"

_FILE = WordsFile(Path(__file__).with_suffix(".toml"))
MAPPED = _FILE.words("fields")
"""The keys that set fields."""
MAPPED[_BACKEND] = replace(MAPPED[_BACKEND], default=DEFAULT.torchtitan, values=_COMM_BACKENDS)
TABLE = _FILE.table(mapped=MAPPED)

FLOAT8_CONVERTERS = ("float8", "quantize.linear.float8")
"""Names of the converter to torchao's float8, and of its section."""
