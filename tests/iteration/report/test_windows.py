"""The parts of an iteration that pictures show."""

import numpy as np
import pytest

from simtrain.iteration.report.windows import windows_of
from tests.helpers.toys import run, small

LONG = run(small().replace({"batch.global": 120}))


def test_a_short_iteration_is_shown_as_a_whole() -> None:
    result = run(small())
    assert windows_of(result) == {"": (0.0, result.iteration_time_s)}


def test_three_windows_that_would_show_nearly_everything_are_one() -> None:
    """A pipeline of 64 stages fills and drains for more than half of 51 microbatches."""
    deep = small({"pipeline": 64}, model={"num_layers": 64})
    assert len(windows_of(run(deep.replace({"batch.global": 51})))) == 1


def test_a_long_iteration_is_shown_in_three_parts() -> None:
    """120 microbatches have 240 passes per stage."""
    windows = windows_of(LONG)
    assert [*windows] == ["start", "steady part", "end"]
    (begin, first_end), (middle, middle_end), (last, end) = windows.values()
    assert begin == 0 and end == LONG.iteration_time_s
    assert first_end < middle < middle_end < last
    passes = LONG.bars.where(LONG.bars.microbatch >= 0)
    for stage in range(LONG.num_stages):
        of_stage = passes.where(passes.stage == stage)
        backward = of_stage.where(of_stage.activity == 2)
        assert backward.start_s.min() < first_end and of_stage.end_s.max() > last
        shown = np.count_nonzero((of_stage.end_s > middle) & (of_stage.start_s < middle_end))
        assert 20 <= shown <= 30


def test_windows_of_a_deep_pipeline_end_two_passes_beside_its_filling_and_draining() -> None:
    """32 stages fill for more than the 24 passes that a window shows at least."""
    deep = small({"pipeline": 32}, model={"num_layers": 32})
    result = run(deep.replace({"batch.global": 200}))
    pass_s, stages = result.iteration_time_s / 400, range(32)
    (_, filled), (middle, middle_end), (drains, _) = windows_of(result).values()
    passes = result.bars.where(result.bars.microbatch >= 0)
    each = [passes.where(passes.stage == stage) for stage in stages]
    first_s = [bars.where(bars.activity == 2).start_s.min() for bars in each]
    assert filled == pytest.approx(max(first_s) + 2 * pass_s)
    assert drains == pytest.approx(min(bars.end_s.max() for bars in each) - 2 * pass_s)
    assert middle_end - middle == pytest.approx(24 * pass_s)
    assert middle - filled == pytest.approx(drains - middle_end)
