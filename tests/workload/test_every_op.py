"""Laws of every op of scenarios that together have every field and choice."""

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

from simtrain.iteration.plan import Plan
from simtrain.workload.ops import Op, Phase
from simtrain.workload.passes import Pass, record_pass
from simtrain.workload.work import Elementwise
from tests.helpers.merged_cases import merged_scenarios
from tests.helpers.toys import plan_of

FRACTIONS = ("element_bytes", "output_element_bytes", "speed")  # fp4, and slower kernels


@pytest.fixture(scope="module", params=range(3))
def plans(request: pytest.FixtureRequest) -> list[Plan]:
    drawn = [*merged_scenarios(request.param)]
    changes = ({"recompute": "none"} if each.recompute.is_open else {} for each in drawn)
    return [plan_of(each.replace(change)) for each, change in zip(drawn, changes, strict=True)]


def passes_of(plan: Plan) -> Iterator[Pass]:
    return (each for each, _ in plan.different_passes() if isinstance(each, Pass))


def counts(op: Op) -> Iterator[tuple[str, int]]:
    work = op.work
    derived = {
        name: getattr(work, name) for name in ("flops", "model_flops") if hasattr(work, name)
    }
    numbers = dataclasses.asdict(work) | derived | op._asdict()
    for name, value in numbers.items():
        if isinstance(value, int | float) and name not in FRACTIONS:
            yield name, value


def test_counts_are_whole_and_bytes_those_of_two_byte_numbers(plans: list[Plan]) -> None:
    """A ratio, a difference or a byte too many would show: all sizes are even."""
    for plan in plans:
        in_passes = (op for each in passes_of(plan) for op in record_pass(each).ops)
        in_steps = (op for step in plan.steps for ops in step.values() for op in ops)
        for op in itertools.chain(in_passes, in_steps):
            for name, value in counts(op):
                assert isinstance(value, int) and value >= 0, (op.name, name)
                assert value % 2 == 0 or not name.endswith("bytes"), (op.name, name, value)


def test_phases_and_names_say_which_way_an_op_goes(plans: list[Plan]) -> None:
    """What makes or moves gradients is of a backward pass, and so are its kernels' bandwidths."""
    for each in itertools.chain(*map(passes_of, plans)):
        for op in record_pass(each).ops:
            is_gradient = op.phase in (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
            assert is_gradient or (op.phase is Phase.FORWARD) == (each.kind == "F")
            if isinstance(op.work, Elementwise):
                assert op.work.is_backward == is_gradient, op.name
            if not is_gradient:
                assert " gradient" not in op.name or op.name == "logits to gradient"
