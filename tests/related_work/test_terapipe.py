"""TeraPipe: GPipe's order of slices, its bubble and its peak."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import simulate
from simtrain.schedules import OrderOptions, Schedule, build, most_outstanding
from tests.helpers.pipelines import PipelineSeconds, pipeline_program


def test_the_order_by_hand() -> None:
    """Two microbatches of two slices: forwards in order, backwards of each from its last slice."""
    order = build("terapipe", 2, 1, 2, OrderOptions(num_slices=2)).to_csv().splitlines()
    assert order == ["0F0,0F1,0F2,0F3,0B1,0B0,0B3,0B2", "1F0,1F1,1F2,1F3,1B1,1B0,1B3,1B2"]


def makespan_s(schedule: Schedule, forward_s: int, backward_s: int) -> int:
    """Return the time of a schedule whose passes take these seconds, without messages."""
    durations = PipelineSeconds(
        lambda action: forward_s if action.kind == "F" else backward_s, lambda *_: 0
    )
    return int(simulate(pipeline_program(schedule, durations, overlap=True)[0]).makespan_s)


@given(*(st.integers(1, 5) for _ in range(5)))
@settings(max_examples=20)
def test_bubble_and_peak_of_equal_slices(
    p: int, n: int, slices: int, forward_s: int, backward_s: int
) -> None:
    """The bubble is (p - 1)(F + B)/s (Li et al. 2021, Equation 5); all slices are held."""
    schedule = build("terapipe", p, 1, n, OrderOptions(num_slices=slices))
    slice_s = forward_s + backward_s
    assert makespan_s(schedule, forward_s, backward_s) == (n * slices + p - 1) * slice_s
    assert most_outstanding(schedule).tolist() == [n * slices] * p


@given(st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=10)
def test_one_slice_is_gpipe(p: int, n: int) -> None:
    assert build("terapipe", p, 1, n).ranks == build("gpipe", p, 1, n).ranks
