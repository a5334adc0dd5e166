"""Laws of the errors against published collectives over nodes (docs/update/network_errors.py)."""

from docs.update.network_errors import errors, rings_alone
from docs.update.published.networks import PUBLISHED
from simtrain.hardware.load import load_profile


def test_algorithms_are_closer_to_published_times_than_rings_alone() -> None:
    before, after = [], []
    for figures in PUBLISHED:
        profile = load_profile(figures.cluster)
        before += map(abs, errors(figures, rings_alone(profile)))
        after += map(abs, errors(figures, profile))
    assert sum(after) / len(after) < 0.1 < 0.8 < sum(before) / len(before)
