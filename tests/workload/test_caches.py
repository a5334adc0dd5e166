"""Recordings are freed at once, equal values are one object, and lengths share recordings."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import pickle
import pkgutil

import pytest
from hypothesis import given

from simtrain import load_scenario
from simtrain.base.process import forget_cached
from simtrain.iteration.plan import Plan, microbatch_of
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.workload.chunk import chunk_of
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.hashing import shared
from simtrain.workload.issue import Segment
from simtrain.workload.ops import Tensor, elementwise
from simtrain.workload.passes import record_pass
from simtrain.workload.tape import Block, Tape, record
from tests.helpers.toys import layer_scenarios, plan_of


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


@given(layer_scenarios())
def test_plans_of_equal_scenarios_share_their_values(scenario: Scenario) -> None:
    again = Scenario.model_validate(scenario.model_dump(by_alias=True), by_alias=True)
    one, other = plan_of(scenario), plan_of(again)
    assert one.model is other.model
    assert one.options is other.options
    assert one.step_options is other.step_options
    assert one.stage_parameters is other.stage_parameters
    for key, pass_ in one.passes.items():
        assert other.passes[key] is pass_


@given(layer_scenarios())
def test_a_value_from_another_process_is_replaced_by_the_shared_one(scenario: Scenario) -> None:
    """Hashes of strings differ between processes, so pickles do not contain them."""
    options = plan_of(scenario).options
    copy = pickle.loads(pickle.dumps(options))
    assert "_hash" not in vars(copy)
    assert copy is not options
    assert shared(copy) is options


BUILT_IN_STEPS = {"IssueOrder", "PassBuilder", "Region", "Tape", "TensorVersions"}


@pytest.mark.parametrize("room", ["base", "scenario", "hardware", "workload", "durations"])
def test_values_are_frozen_as_caches_are_asked_for_them(room: str) -> None:
    package = importlib.import_module(f"simtrain.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(found.name)).items():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                parameters = value.__dataclass_params__  # type: ignore[attr-defined]
                assert parameters.frozen or name in BUILT_IN_STEPS, name


# Results at other lengths (`workload.lengths`).

LENGTHS = 2048, 1024, 4096, 8192, 6144, 512


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """A block with a kernel for many rows and another for few, or one that counts them."""

    counts: bool
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        name = f"{len(range(x.rows))} rows" if self.counts else "few"
        op = elementwise(name if x.rows < 300 else "many", x.num_bytes, x.num_bytes)
        return tape.record(op.name, (x,), tape.tensor("y", x.rows, x.width), (op,), (op,))


def segments_at(plan: Plan, length: int, *blocks: Block) -> list[Segment]:
    batch = dataclasses.replace(plan.microbatch, seq_length=length)
    options = dataclasses.replace(plan.options, microbatch=batch)
    chunk = {"chunk": chunk_of(blocks)} if blocks else {}
    passes = [dataclasses.replace(x, options=options, **chunk) for x in plan.passes.values()]
    return [segment for pass_ in passes for segment in record_pass(pass_).segments]


@pytest.mark.parametrize("name", ["table5_1t_full", "deepseek_v3", "nemotron_h_56b", ""])
def test_segments_at_any_length_are_those_of_a_recording(name: str) -> None:
    plan = plan_of(load_scenario(name or "gpt3_175b"))
    blocks = () if name else (RowBlock(counts=False), RowBlock(counts=True))
    forget_cached()  # other tests may have derived some pieces of a template
    segments = [segments_at(plan, length, *blocks) for length in LENGTHS]
    for number, length in enumerate(LENGTHS):
        forget_cached()
        for one, other in zip(segments[number], segments_at(plan, length, *blocks), strict=True):
            assert repr(dataclasses.replace(one, pattern=other.pattern)) == repr(other)
    last, before = ({id(each.launches) for each in segments[number]} for number in (-1, -2))
    assert (last == before) == bool(name), "a template fills in later segments"
