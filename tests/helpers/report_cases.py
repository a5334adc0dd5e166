"""Scenarios of reports that tests open in a browser, and the bars of their timelines."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simtrain.iteration.report.result import Result
from simtrain.render.timeline_lanes import NUM_LANES, lanes_of
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
    "two directions": small(
        {"tensor": 1, "data": 2},
        model={"tied_embeddings": False},
        overlap={"data_parallel": True},
        schedule="chimera",
    ),
    "gathers of chunks": small(
        {"tensor": 1, "data": 4, "interleave": 2},
        model={"tied_embeddings": False},
        memory={"zero_stage": 3, "reduce_every_microbatch": False, "gathered_chunks": 1},
        overlap={"data_parallel": True, "pipeline": True},
        software={"stack": "megatron_2022", "fully_shard": True},
        schedule="looped_bfs",
    ),
}


def bars_of(result: Result) -> dict[str, NDArray[Any]]:
    """Return the bars of a timeline by lane and start."""
    bars = result.bars
    lane = NUM_LANES * bars.stage + lanes_of(bars)
    names = "activity", "chunk", "microbatch", "start_s", "end_s"
    order = np.lexsort((bars.start_s, lane))
    first = np.searchsorted(lane[order], np.arange(NUM_LANES * result.num_stages + 1))
    return {"first": first, **{name: getattr(bars, name)[order] for name in names}}
