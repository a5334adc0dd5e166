"""Sources of the numbers in a report: the command that prints each number, and its meaning."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_RUN = r"/runs/\d+"
_OPERATORS = rf"{_RUN}/operators"
_COMPARED = "/comparison"


@dataclass(frozen=True, slots=True)
class NumberSource:
    """Source of a kind of numbers.

    Args:
        places: a regular expression that matches the JSON pointers of the numbers.
        command: the command that prints the numbers; X is replaced by the scenario.
        meaning: what the numbers are computed from.
        explained: the main figure that the numbers belong to. The section Sources shows its parts
            down to profile entries.
    """

    places: str
    command: str
    meaning: str
    explained: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON data."""
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
        "MFU, with the FLOPs of recompute added.",
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
        "A share of the time of the operators of all passes.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result/(breakdown_s|stages_s/\d+)/\w+",
        "run X --json",
        "A part of a stage's time in the timeline. The breakdown is the mean over the stages.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result/memory/(capacity_bytes|stages/\d+/.*)",
        "run X --json",
        "Bytes of the tensors that exist at the stage's peak, and the allocator's allowance.",
        "peak_memory",
    ),
    NumberSource(
        rf"{_OPERATORS}/.*",
        "run X --ops --json",
        "A sum over equal ops of one rank. The row names the entries of the hardware profile.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/explained/(\w+)/.*",
        "explain X FIGURE --json",
        "A part of a figure. It lists its profile entries; the table below has their sources.",
    ),
    NumberSource(
        rf"{_RUN}/profile/.*",
        "profile show CLUSTER",
        "An entry of the hardware profile, which states its source.",
    ),
    NumberSource(
        rf"{_COMPARED}/differences/\d+/(difference_s|tokens_ratio|causes_s/\w+)",
        "compare X Y --json",
        "The second scenario's breakdown minus the first one's.",
    ),
    NumberSource(
        rf"{_COMPARED}/scenarios/\d+/with_more/.*",
        "compare X Y --json",
        "The iteration time saved, from a simulation with more of one resource of the cluster.",
    ),
    NumberSource(
        rf"{_COMPARED}/scenarios/\d+/.*",
        "compare X Y --json",
        "A figure of one scenario. The parts of its critical path add up to the iteration time.",
    ),
)
"""Sources in order of precedence: the first that matches a pointer applies."""


def source_of_number(pointer: str) -> NumberSource | None:
    """Return the source of the number at a JSON pointer, or None if no source matches."""
    return next((one for one in NUMBER_SOURCES if re.fullmatch(one.places, pointer)), None)
