"""Where each number of a report comes from: the command that prints it, and what it means."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_RUN = r"/runs/\d+"
_OPERATORS = rf"{_RUN}/operators"
_COMPARED = "/comparison"


@dataclass(frozen=True, slots=True)
class NumberSource:
    """The source of numbers.

    Args:
        places: a regular expression of the JSON pointers to the numbers.
        command: the command that prints them with `--json`; X stands for the scenario.
        meaning: what they are computed from.
        explained: the figure whose origins, down to profile entries, are in the data.
    """

    places: str
    command: str
    meaning: str
    explained: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


NUMBER_SOURCES = (
    NumberSource(
        rf"{_RUN}/result/iteration_time_s",
        "run X --json",
        "The end of the last task of the simulated timeline.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result/mfu",
        "run X --json",
        "Model FLOPs / (GPUs × peak FLOP/s of bf16 × iteration time).",
        "mfu",
    ),
    NumberSource(
        rf"{_RUN}/result/hfu",
        "run X --json",
        "As MFU, with the FLOPs of recompute.",
        "hfu",
    ),
    NumberSource(
        rf"{_RUN}/result/tokens_per_s",
        "run X --json",
        "Sequences of the global batch × sequence length / iteration time.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result/(num_gpus|num_simulated_ranks|num_parameters|num_active_parameters)",
        "run X --json",
        "A count that follows from the scenario.",
    ),
    NumberSource(
        rf"{_RUN}/result/(extrapolated_compute|host_bound)",
        "run X --json",
        "A share of time, from the operators of all passes.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result/(breakdown_s|stages_s/\d+)/\w+",
        "run X --json",
        "A part of a stage's time in the timeline; the breakdown has the mean over the stages.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result/memory/(capacity_bytes|stages/\d+/.*)",
        "run X --json",
        "Bytes of tensors that are alive at the stage's peak, and the allocator's allowance.",
        "peak_memory",
    ),
    NumberSource(
        rf"{_OPERATORS}/.*",
        "run X --ops --json",
        "A sum over equal ops of one rank; the row names the entries of the hardware profile.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/explained/(\w+)/.*",
        "explain X FIGURE --json",
        "A part of a figure; its entries stand beside it, with their sources in the same section.",
    ),
    NumberSource(
        rf"{_RUN}/profile/.*",
        "profile show CLUSTER",
        "An entry of the hardware profile, with its source there.",
    ),
    NumberSource(
        rf"{_COMPARED}/differences/\d+/(difference_s|tokens_ratio|causes_s/\w+)",
        "compare X Y --json",
        "The second scenario's breakdown minus the first one's.",
    ),
    NumberSource(
        rf"{_COMPARED}/scenarios/\d+/with_more/.*",
        "compare X Y --json",
        "The iteration, simulated again with more of one resource of the cluster.",
    ),
    NumberSource(
        rf"{_COMPARED}/scenarios/\d+/.*",
        "compare X Y --json",
        "A figure of one scenario; its critical path adds up to the iteration time.",
    ),
)
"""The first that fits a number applies."""


def source_of_number(pointer: str) -> NumberSource | None:
    """Return the source of the number at a JSON pointer; None if no source is named for it."""
    return next((one for one in NUMBER_SOURCES if re.fullmatch(one.places, pointer)), None)
