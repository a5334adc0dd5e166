"""Recordings of blocks."""

from __future__ import annotations

import gc

from simtrain import load_scenario
from simtrain.iteration.plan import microbatch_of
from simtrain.studies.evaluation import Evaluator
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.tape import record


def test_a_recording_has_no_reference_cycles() -> None:
    """A search runs without the garbage collector, and its caches drop many recordings."""
    scenario = load_scenario("deepseek_v3")
    blocks = [block for block, _ in gpt_blocks(scenario).runs]
    microbatch = microbatch_of(
        scenario, scenario.mesh(Evaluator().profile_of(scenario).cluster.domains)
    )
    # Objects of other tests are not examined.
    gc.freeze()
    gc.disable()
    try:
        for block in blocks:
            record.__wrapped__(block, microbatch)
        assert gc.collect() == 0
    finally:
        gc.enable()
        gc.unfreeze()
