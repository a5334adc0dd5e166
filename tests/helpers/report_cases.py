"""Scenarios of reports that tests open in a browser, and the bars of their timelines."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simtrain.iteration.report.activities import Bars
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from tests.helpers.expert_models import moe
from tests.helpers.toys import small

NETWORKED = {"tensor": 8, "data": 2, "interleave": 2, "sequence_parallel": True}
CASES: dict[str, Scenario] = {
    "interleaved": small({"interleave": 2, "tensor": 2}, recompute="full"),
    "sequence parallel": small({"tensor": 8, "pipeline": 1, "sequence_parallel": True}),
    "overlapped buckets between nodes": small(
        NETWORKED,
        memory={"zero_stage": 1},
        overlap={"data_parallel": True, "parameter_gather": True, "pipeline": True},
    ),
    "experts": moe(),
    "reduction after all passes": small(
        {"tensor": 1, "data": 4},
        model={"tied_embeddings": False},
        memory={"zero_stage": 3, "reduce_every_microbatch": False},
        overlap={"data_parallel": True},
        software={"stack": "megatron_2022", "fully_shard": True},
    ),
}


def bars_of(result: Result) -> dict[str, NDArray[Any]]:
    """Return the bars of a timeline by lane and start; each stage has three lanes."""
    bars = Bars.of(result)
    lane = 3 * bars.stage + bars.row
    names = "activity", "chunk", "microbatch", "start_s", "end_s"
    order = np.lexsort((bars.start_s, lane))
    first = np.searchsorted(lane[order], np.arange(3 * result.num_stages + 1))
    return {"first": first, **{name: getattr(bars, name)[order] for name in names}}
