"""Ranks that divide a sequence compute the same attention as one rank."""

import pathlib

import pytest
import torch

from tests.helpers.context_ranks import run_rank
from tests.helpers.rank_processes import run_ranks

pytestmark = pytest.mark.slow


@pytest.mark.ci
def test_ring_attention_equals_attention_on_one_rank(tmp_path: pathlib.Path) -> None:
    """With three ranks, only half of a rank's queries attend to some blocks of keys, and all
    queries attend to only half of others.
    """
    run_ranks(run_rank, (str(tmp_path), 3), 3)
    for rank in range(3):
        attention, layer = torch.load(tmp_path / f"{rank}.pt")
        assert (len(attention), len(layer)) == (4, 2)
        assert max(attention) < 1e-7
        assert max(layer) < 1e-5
