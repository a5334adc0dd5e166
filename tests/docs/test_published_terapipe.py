"""TeraPipe's published speed-ups on V100s, and what they show of the simulation."""

import pytest

from docs.update.published.terapipe import SETTINGS, Setting
from docs.update.terapipe import equal, scenario_of, speedup, time_of
from simtrain.studies.simulation import simulate

pytestmark = [pytest.mark.slow, pytest.mark.ci]

BY_NUMBER = {each.number: each for each in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: str(setting.number))
def test_speedups(setting: Setting) -> None:
    """Published: 1.40 to 6.75. No number of the profile follows from them."""
    published = setting.whole_s / setting.sliced_s
    assert speedup(setting) == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: str(setting.number))
def test_times(setting: Setting) -> None:
    """13B is the slowest by prediction: its messages take a third of the time."""
    bound = 0.25 if setting.number == 5 else 0.09
    assert time_of(setting) == pytest.approx(setting.whole_s, rel=bound)
    assert time_of(setting, setting.lengths) == pytest.approx(setting.sliced_s, rel=bound)


def test_sixteen_slices_are_best_on_96_stages() -> None:
    setting = BY_NUMBER[9]
    published = {1: setting.whole_s} | dict(setting.equal_s)
    ours = {number: time_of(setting, equal(number)) for number in published}
    ratios = [ours[number] / published[number] for number in published]
    assert min(ratios) > 0.91 and max(ratios) < 1.13
    # 8 and 64 slices, 15 % apart when measured and 2 % here, are in the other order.
    order = [sorted(times, key=times.__getitem__) for times in (ours, published)]
    assert order == [[16, 32, 64, 8, 128, 4, 1], [16, 32, 8, 64, 4, 128, 1]]


def test_messages_that_block_explain_slices_of_small_layers() -> None:
    """Sent beside the passes, they would make 13B and 44B faster than published by a third."""
    for number in (5, 8):
        setting = BY_NUMBER[number]
        beside = scenario_of(setting, setting.lengths).replace({"overlap.pipeline": None})
        assert simulate(beside).iteration_time_s < 0.7 * setting.sliced_s
