"""Ranks that divide a sequence attend as one does."""

import pathlib

import pytest
import torch

from tests.helpers.context_ranks import run_rank
from tests.helpers.rank_processes import run_ranks

pytestmark = pytest.mark.slow


def test_ring_attention_equals_attention_on_one_rank(tmp_path: pathlib.Path) -> None:
    """Three ranks: some blocks are seen by half of the queries, and of others half is seen."""
    run_ranks(run_rank, (str(tmp_path), 3), 3)
    for rank in range(3):
        attention, layer = torch.load(tmp_path / f"{rank}.pt")
        assert (len(attention), len(layer)) == (4, 2)
        assert max(attention) < 1e-7
        assert max(layer) < 1e-5
